"""The server of the benchmarks: front and engine in processes of their own, as `sojourn serve` starts them, and a plain client.

The engine is `timed_engine`, so that the time in native steps is known here. The client is the standard library's, one
connection each: what it costs is the least that a client in Python costs.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.timed_engine import SHARED, open_shared

from sojourn.api.settings import FrontSettings
from sojourn.app.config import EngineOptions
from sojourn.app.processes import EngineStart, FrontStart
from sojourn.app.supervisor import listen

Json: TypeAlias = dict[str, Any]


IDLE_MAX_S = 2.0  # the server may close a connection that was idle


class Connection:
    """Kept alive, one request at a time."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._used_at = time.monotonic()

    def _send(self, method: str, path: str, body: Json | None) -> http.client.HTTPResponse:
        now = time.monotonic()
        if now - self._used_at > IDLE_MAX_S:
            self._http.close()  # the next request opens it again
        self._used_at = now
        text = None if body is None else json.dumps(body)
        self._http.request(method, path, text, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {response.read()!r:.400}")
        return response

    def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        answer: Json = json.loads(self._send(method, path, body).read())
        return answer

    def stream(self, path: str, body: Json) -> Iterator[Json]:
        """The events, up to the end of the answer."""
        response = self._send("POST", path, {**body, "stream": True})
        while line := response.readline():
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])

    def close(self) -> None:
        self._http.close()


class Served:
    """Both processes, ready. What they log goes to `log` in a folder that is removed with them."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sojourn-bench-")
        place = Path(self._folder.name)
        (place / "steps").write_bytes(bytes(SHARED.size))
        self._shared = open_shared(place / "steps")
        self._log = (place / "log").open("wb")
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        address = f"ipc://{place}/engine"
        front = FrontStart(listener.fileno(), FrontSettings(address))
        self._parts = [
            self._start(["sojourn.app.front_process"], front.to_json(), front.fd),
            self._start(
                ["benchmarks.timed_engine", str(place / "steps")], EngineStart(address, model, options).to_json()
            ),
        ]
        listener.close()
        connection = Connection(self.port)
        connection.ask("GET", "/ready?wait=100")
        connection.close()

    def _start(self, module: list[str], start: str, *fds: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", *module]
        part = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._log, stdout=self._log, pass_fds=fds)
        assert part.stdin is not None
        part.stdin.write(start.encode() + b"\n")
        part.stdin.flush()
        return part

    def log(self) -> str:
        """What both have logged so far."""
        return (Path(self._folder.name) / "log").read_text(errors="replace")

    @property
    def native_seconds(self) -> float:
        """In native steps since the start."""
        seconds: float = SHARED.unpack_from(self._shared, 0)[0]
        return seconds

    def close(self) -> None:
        for part in self._parts:
            part.terminate()
            part.wait(60)
            assert part.stdin is not None
            part.stdin.close()
        self._log.close()
        self._shared.close()
        self._folder.cleanup()
