"""Servers for the tests of the API: one that is shared, and a folder with a tiny model for those of one's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server import Server, eventually, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny model and the cache of prepared ones lie."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def shared_server(models: Path) -> Iterator[Server]:
    with serving(models, "--context", "4096", "--pool-tokens", "16384", "--chunk", "64") as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared server, which each test leaves as it found it: nothing runs, no session is open, no page is missing."""
    yield shared_server
    quiet(shared_server)


def quiet(server: Server) -> None:
    """Q of the table of scenarios."""
    http = server.http
    for session in http.get("/v1/sessions").json()["data"]:
        http.post(f"/v1/sessions/{session['id']}/interrupt", json={"keep": 0})
        assert http.delete(f"/v1/sessions/{session['id']}").status_code in (200, 404)
    assert http.get("/live").status_code == 200
    assert http.get("/ready").status_code == 200
    assert http.get("/health", params={"deep": 1}).status_code == 200
    eventually(lambda: http.post("/v1/pools/flush").status_code == 200, "something runs yet")
    shown = http.get("/v1/pools").json()
    assert shown["identity"] is True
    for pool in shown["pools"]:
        assert pool["free"] + pool["reserved"] == pool["total"], pool
        assert (pool["fenced"], pool["leaked"]) == (0, 0)
