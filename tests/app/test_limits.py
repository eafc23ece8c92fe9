"""`--limit NAME=N`: bounds by name, refused by name."""

from importlib.metadata import version

import pytest

from sojourn.api.settings import FrontSettings
from sojourn.app.limits import Limits
from sojourn.app.serve import front_settings
from sojourn.core.errors import ClientError


def test_limits_by_name() -> None:
    limits = Limits.of(10, ["tenant_sessions=3", "tenant_turns=4", "tenant_waiting=2", "session_tokens=100"])
    assert limits == Limits(10, 3, 4, 2, 100)
    assert Limits.of(10, ["requests=5"]) == Limits(10, requests=5)
    assert Limits.of(7, None) == Limits(7)
    assert front_settings(1.0, None, Limits.of(7, ["requests=5", "tenant_turns=4"]), strict=False) == FrontSettings(
        "", version("sojourn"), shutdown_timeout_s=1.0, requests_max=5, tenant_requests_max=4
    )


@pytest.mark.parametrize(
    "text", ["", "tenants=3", "tenant_turns", "tenant_turns=", "tenant_turns=-1", "tenant_turns=x", "sessions=3"]
)
def test_what_is_no_limit_is_refused_with_the_names(text: str) -> None:
    with pytest.raises(
        ClientError, match="tenant_sessions, tenant_turns, tenant_waiting, session_tokens, requests"
    ) as refused:
        Limits.of(10, [text])
    assert refused.value.param == "limit"


@pytest.mark.parametrize(
    ("text", "param"),
    [("tenant_turns=0", "tenant_turns"), ("session_tokens=1", "session_tokens"), ("requests=0", "requests")],
)
def test_bounds_of_limits(text: str, param: str) -> None:
    with pytest.raises(ClientError, match=f"{param} must be a whole number from") as refused:
        Limits.of(10, [text])
    assert refused.value.param == param
