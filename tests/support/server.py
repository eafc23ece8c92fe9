"""A real server in processes of its own, on a free port of this machine: `sojourn serve` as a person starts it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from gguf import GGMLQuantizationType

from tests.support.model_files import GgufOptions, tiny_model, write_gguf

COMMAND = (sys.executable, "-c", "from sojourn.app.cli import main; main()")
ROOT = Path(__file__).parents[2]
GUARD_S = 120.0  # against hanging; never a measure
CHATML = (
    "{% for m in messages %}{{ '[' + m.role + ':' + m.content + ']' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant:' }}{% endif %}"
)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Ask again until it holds. What others count comes with their next word, however long that takes on a busy machine."""
    ends_at = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < ends_at, what


class Server:
    """A running `sojourn serve`. `log` is its stderr so far."""

    def __init__(
        self,
        arguments: Sequence[str],
        cache: Path,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._data = tempfile.TemporaryDirectory(prefix="sojourn-data-")  # sessions of its own, unless told otherwise
        own = {"SOJOURN_CACHE": str(cache), "SOJOURN_DATA": self._data.name, "COLUMNS": "200"}
        environment = {**os.environ, **own, **(environment or {})}
        self.process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("sojourn: http://"), (line, self.stderr())
        self.url = line.removeprefix("sojourn: ").strip()
        self.http = httpx.Client(base_url=self.url, timeout=GUARD_S)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            with self._grown:
                self._grown.notify_all()

    def wait_until_ready(self) -> "Server":
        response = self.http.get("/ready", params={"wait": 100})
        assert response.status_code == 200, (response.text, self.stderr())
        return self

    def stderr(self) -> str:
        if self.process.poll() is not None:
            self._reader.join(GUARD_S)
        return "".join(self.log)

    def lines_with(self, *parts: str, count: int = 1, after: int = 0) -> list[str]:
        """The log's lines from `after` on that have all `parts`, as soon as there are `count`: the log runs behind answers."""
        ends_at = time.monotonic() + GUARD_S
        while True:
            lines = [line for line in self.log[after:] if all(part in line for part in parts)]
            if len(lines) >= count:
                return lines
            assert time.monotonic() < ends_at, (parts, count, self.stderr())
            with self._grown:
                self._grown.wait(1.0)

    def metric(self, name: str, *, least: float = 0.0) -> float:
        """Waits for it to be told, and to be at least so much: the engine tells its counts now and then."""
        ends_at = time.monotonic() + GUARD_S
        while True:
            lines = [line for line in self.http.get("/metrics").text.splitlines() if line.startswith(name)]
            value = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
            if lines and value >= least:
                return value
            assert time.monotonic() < ends_at, (name, lines)

    def pid_of(self, part: str) -> int:
        """The process of the front or the engine that was started last."""
        line = self.lines_with(f"the {part} is process ")[-1]
        return int(re.findall(r"is process (\d+)", line)[-1])

    def kill(self, part: str) -> None:
        os.kill(self.pid_of(part), signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.process.wait(GUARD_S)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(GUARD_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self._reader.join(GUARD_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self._data.cleanup()


def write_tiny_gguf(
    folder: Path,
    *,
    context: int = 8192,
    architecture: str = "llama",
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """A random model of a few kilobytes with a chat template: byte-level text, greedy answers that never change.

    Quantised it is a quarter as large and mostly says the same.
    """
    fields = {"{arch}.context_length": context, "tokenizer.chat_template": CHATML}
    model = tiny_model(architecture, seed=5)
    weights = dict(model.weights)
    weights["head"] = weights["head"].copy()
    weights["head"][-1] = np.float32(0)  # the end-of-turn token is never the likeliest
    width = "" if quantization is GGMLQuantizationType.F32 else f"-{quantization.name.lower()}"
    name = f"tiny-{architecture}{width}.gguf"
    return write_gguf(folder / name, type(model)(architecture, weights), GgufOptions(quantization, fields))


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    model: Path | str | None = None,
    cache: Path | None = None,
    ready: bool = True,
    command: Sequence[str] = COMMAND,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server over a tiny model (or another one) whose files lie in `folder`, prepared ones in `cache` or there."""
    path = model or folder / "tiny-llama.gguf"
    if isinstance(path, Path) and not path.exists():
        write_tiny_gguf(folder)
    arguments = ("--model", str(path), "--threads", "1", "--strict-mem-check", "2", *arguments)
    server = Server(arguments, cache or folder / "cache", command, environment)
    try:
        yield server.wait_until_ready() if ready else server
    finally:
        server.close()
