"""The OpenAPI document says what the server does: generated requests of every operation, for and against their schemas.

Seeded and bounded. A 5xx, a status, a content type or a body that the document does not have is a failure.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.server import Server, serving

pytestmark = pytest.mark.http_scenario
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def documented(models: Path) -> Iterator[Server]:
    """A context of its own size: what is generated ends soon."""
    with serving(models, "--context", "64", "--pool-tokens", "2048") as server:
        yield server


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_what_is_answered_is_documented(documented: Server, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{documented.url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        try_out(operation, mode)


def try_out(operation: APIOperation, mode: GenerationMode) -> None:
    @settings(
        max_examples=10,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "tiny-llama"  # any other is not found, and nothing else would be tried
        case.call_and_validate(checks=CHECKS, timeout=60)

    with suppress(Unsatisfiable):  # there is nothing to get wrong
        run()
