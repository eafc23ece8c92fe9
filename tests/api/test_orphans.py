"""The supervisor alone is killed: what it started ends, and the next server on the same folders has all that was kept."""

import fcntl
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.server import GUARD_S, Server, eventually, serving

pytestmark = pytest.mark.http_scenario
SIZE = ("--context", "4096", "--pool-tokens", "4096")


def ask(server: Server, name: str, count: int, max_tokens: int) -> dict[str, object]:
    body = {"token_ids": [40 + index % 50 for index in range(count)], "max_tokens": max_tokens, "temperature": 0}
    answer = server.http.post(f"/v1/sessions/{name}/turns", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def has_ended(pid: int) -> bool:
    """Nobody may be there to take its exit code: then it is a zombie, which holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(Path(os.readlink(link)) == path for link in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # a descriptor that was closed meanwhile
        return False


def has_come_to(server: Server, path: Path) -> bool:
    """Its engine has the file open, or has given it up already."""
    return has_open(server.pid_of("engine"), path) or any("goes on without it" in line for line in server.log)


def kill_the_supervisor(server: Server) -> None:
    server.process.kill()
    server.process.wait(GUARD_S)


def test_the_next_server_waits_for_the_engine_of_a_killed_supervisor(tmp_path: Path) -> None:
    options = (*SIZE, "--data-dir", str(tmp_path / "data"), "--disk-cache", str(tmp_path / "kv"))
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, *options))
        engine, front = server.pid_of("engine"), server.pid_of("front")
        assert server.http.post("/v1/sessions", json={"session_id": "talk"}).status_code == 200
        ask(server, "talk", 100, 8)
        body = {"text": "and now", "max_tokens": 3900, "temperature": 0, "stream": True}
        with server.http.stream("POST", "/v1/sessions/talk/turns", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(engine, signal.SIGSTOP)  # it takes its time to end
            try:
                kill_the_supervisor(server)
                other = stack.enter_context(serving(tmp_path, *options, ready=False))
                eventually(lambda: has_come_to(other, tmp_path / "kv" / ".lock"), "it does not come to the folder")
            finally:
                os.kill(engine, signal.SIGCONT)
            other.wait_until_ready()
            assert "engine_unavailable" in "".join(lines), "who waited for the turn is told"
        assert other.metric('sojourn_kv_tier_usable{tier="disk"') == 2, "it is read and written"
        eventually(lambda: has_ended(engine) and has_ended(front), "they live on")
        cache = ask(other, "talk", 3, 3)["cache"]
        assert isinstance(cache, dict)
        assert cache["source"] == "disk", "what the last engine kept was saved"


def test_an_engine_that_is_loading_its_model_ends_with_its_supervisor(tmp_path: Path) -> None:
    packed = tmp_path / "cache" / "packed"
    packed.mkdir(parents=True)
    with (packed / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process is packing a model, for as long as it likes
        with serving(tmp_path, *SIZE, ready=False) as server:
            engine, front = server.pid_of("engine"), server.pid_of("front")
            eventually(lambda: has_open(engine, packed / ".lock"), "it does not come to it")
            kill_the_supervisor(server)
            eventually(lambda: has_ended(engine) and has_ended(front), "they live on")
