"""The official client, pointed at the shared server."""

from collections.abc import Iterator

import openai
import pytest
from tests.support.server import Server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """It retries nothing, so that each test sees the first answer."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.fixture
def session(server: Server) -> str:
    """A new session."""
    return str(server.http.post("/v1/sessions", json={}).json()["id"])
