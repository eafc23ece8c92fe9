"""A hub id through huggingface_hub, against a local stub of the hub on loopback."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.model_files import tiny_model, write_directory

from sojourn.core.errors import ModelError
from sojourn.models import hub
from sojourn.models.progress import SilentProgress

REVISION = "0123456789abcdef0123456789abcdef01234567"


class StubHub(BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.asked.append(self.path)
        path = self.path.split("?")[0]
        if path.startswith("/api/models/someone/tiny/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": sha256(body).hexdigest()[:40]}
                for name, body in self.files.items()
            ]
            self._send(200, json.dumps(tree).encode(), with_body)
        elif path.startswith("/api/models/someone/tiny/"):
            siblings = [{"rfilename": name} for name in self.files]
            self._send(
                200, json.dumps({"id": "someone/tiny", "sha": REVISION, "siblings": siblings}).encode(), with_body
            )
        elif path.startswith(f"/someone/tiny/resolve/{REVISION}/") and path.rpartition("/")[2] in self.files:
            self._send(200, self.files[path.rpartition("/")[2]], with_body)
        else:
            self._send(404, b"{}", with_body)

    def _send(self, status: int, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{sha256(body).hexdigest()}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    directory = write_directory(tmp_path / "origin", tiny_model("qwen3"))
    StubHub.files = {path.name: path.read_bytes() for path in directory.iterdir()}
    StubHub.files |= {
        "pytorch_model.bin": b"unwanted",
        "consolidated.safetensors": b"unwanted",
        "README.md": b"unwanted",
    }
    StubHub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), StubHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


LOAD = """
import sys
from pathlib import Path
from sojourn.models.loading import load
model = load(sys.argv[1], cache_dir=Path(sys.argv[2]))
print(model.info.name, model.packed.config.architecture, model.packed.config.num_layers)
"""


def load_in_process(endpoint: str, hub_id: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """huggingface_hub reads HF_ENDPOINT when it is imported, so each load is a process of its own."""
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", LOAD, hub_id, str(cache)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_hub_id_is_fetched_once_packed_and_then_served_without_the_hub(endpoint: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load_in_process(endpoint, "someone/tiny", cache)
    assert (first.returncode, first.stdout) == (0, "someone/tiny qwen3 2\n"), first.stderr
    assert not [path for path in StubHub.asked if "pytorch_model" in path or "consolidated" in path or "README" in path]
    asked = len(StubHub.asked)
    later = load_in_process(endpoint, "someone/tiny", cache)
    assert (later.returncode, later.stdout) == (0, "someone/tiny qwen3 2\n"), later.stderr
    assert len(StubHub.asked) == asked


def test_an_unknown_id_says_what_to_check(endpoint: str, tmp_path: Path) -> None:
    result = load_in_process(endpoint, "someone/else", tmp_path)
    assert result.returncode == 1
    assert "ModelError: someone/else: cannot be fetched from the hub: " in result.stderr
    assert "check the id, the network" in result.stderr


def test_a_snapshot_that_was_deleted_is_not_used(tmp_path: Path) -> None:
    assert hub.known_snapshot("someone/tiny", tmp_path) is None
    record = tmp_path / "sojourn-snapshot" / "someone--tiny"
    record.parent.mkdir()
    record.write_text(str(tmp_path / "gone"))
    assert hub.known_snapshot("someone/tiny", tmp_path) is None


def test_failures_of_the_library_are_model_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("no route\nmore")

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"a/b: cannot be fetched from the hub: OSError: no route; check"):
        hub.fetch("a/b", tmp_path, SilentProgress())
