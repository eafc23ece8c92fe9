"""One server for the client's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("client-models")
    with serving(folder, "--context", "2048", "--pool-tokens", "8192") as server:
        yield server
