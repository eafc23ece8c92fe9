"""A server whose model has a BOS, with one batch place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.conftest import quiet
from tests.support.model_files import GgufOptions, tiny_model, write_gguf
from tests.support.server import Server, serving

BOS = 256
CONTEXT = 4096


@pytest.fixture(scope="session")
def narrow_server(models: Path) -> Iterator[Server]:
    fields = {"{arch}.context_length": 8192, "tokenizer.ggml.bos_token_id": BOS}
    model = write_gguf(models / "tiny-bos.gguf", tiny_model("llama", seed=5), GgufOptions(fields=fields))
    size = ("--context", str(CONTEXT), "--pool-tokens", "8192", "--chunk", "64", "--max-running", "1")
    with serving(models, *size, "--enable-streaming-session", model=model) as server:
        yield server


@pytest.fixture
def narrow(narrow_server: Server) -> Iterator[Server]:
    yield narrow_server
    quiet(narrow_server)
