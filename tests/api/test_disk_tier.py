"""The disk tier of a running server: a restart costs no history, and a folder that fails costs nothing but time."""

import random
from pathlib import Path

import pytest
from tests.support.server import Server, eventually, serving

from sojourn.app.config import cache_dir

SMALL = ("--context", "512", "--pool-tokens", "512")
pytestmark = pytest.mark.http_scenario


def tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(32, 120) for _ in range(count)]


def turn(server: Server, name: str, ids: list[int]) -> dict[str, object]:
    body = {"token_ids": ids, "max_tokens": 8, "temperature": 0}
    answer = server.http.post(f"/v1/sessions/{name}/turns", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def opened(server: Server, name: str) -> str:
    assert server.http.post("/v1/sessions", json={"session_id": name}).status_code == 200
    return name


def await_written(server: Server) -> None:
    nothing = {"sessions": 0, "pages": 0}
    eventually(lambda: server.http.get("/v1/pools").json()["unwritten"] == nothing, "something is not written")


def damage(folder: Path) -> None:
    for path in folder.glob("*.0"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_after_a_restart_a_session_goes_on_where_it_was(tmp_path: Path, is_damaged: bool) -> None:
    options = ("--disk-cache", str(tmp_path / "kv"), "--data-dir", str(tmp_path / "data"), *SMALL)
    with serving(tmp_path, *options) as server:
        opened(server, "talk")
        turn(server, "talk", tokens(1, 100))
        saved = server.http.get("/v1/sessions/talk").json()["tokens"]
        assert server.stop() == 0
    if is_damaged:
        damage(tmp_path / "kv")
    with serving(tmp_path, *options) as server, serving(tmp_path, "--durability", "none", *SMALL) as other:
        second = turn(server, "talk", tokens(2, 10))
        opened(other, "talk")
        turn(other, "talk", tokens(1, 100))
        assert second["token_ids"] == turn(other, "talk", tokens(2, 10))["token_ids"], "as if nothing had happened"
        cache = second["cache"]
        assert isinstance(cache, dict)
        if is_damaged:
            assert cache["cached_tokens"] == 0
            assert server.metric('sojourn_kv_tier_lost_pages_total{reason="corrupt"', least=1) > 0
        else:
            assert cache["cached_tokens"] >= saved - 1
            assert cache["source"] == "disk"
            assert server.metric('sojourn_cached_tokens_total{source="disk"') == cache["cached_tokens"]


def test_a_killed_engine_has_written_what_was_idle(tmp_path: Path) -> None:
    options = ("--disk-cache", str(tmp_path / "kv"), "--data-dir", str(tmp_path / "data"), *SMALL)
    with serving(tmp_path, *options) as server, serving(tmp_path, "--durability", "none", *SMALL) as other:
        for name, length in (("talk", 100), ("more", 130)):
            opened(server, name)
            turn(server, name, tokens(length, length))
        await_written(server)
        assert server.metric('sojourn_kv_demoted_bytes_total{cause="ahead"', least=1) > 0
        server.kill("engine")
        server.lines_with("the engine is process", count=2)
        server.wait_until_ready()
        for name, length in (("talk", 100), ("more", 130)):
            saved = server.http.get(f"/v1/sessions/{name}").json()["tokens"]
            second = turn(server, name, tokens(2, 10))
            opened(other, name)
            turn(other, name, tokens(length, length))
            assert second["token_ids"] == turn(other, name, tokens(2, 10))["token_ids"]
            cache = second["cache"]
            assert isinstance(cache, dict)
            assert cache["cached_tokens"] >= saved - 1
            assert cache["source"] == "disk"


@pytest.mark.parametrize("ahead", [True, False])
def test_writing_ahead_can_be_turned_off(tmp_path: Path, ahead: bool) -> None:
    flag = "--disk-cache-ahead" if ahead else "--no-disk-cache-ahead"
    with serving(tmp_path, "--disk-cache", str(tmp_path / "kv"), "--durability", "none", flag, *SMALL) as server:
        opened(server, "talk")
        turn(server, "talk", tokens(1, 100))
        await_written(server)
        assert bool(list((tmp_path / "kv").glob("*.0"))) is ahead


@pytest.mark.usefixtures("smollm2")
def test_sessions_that_the_pool_has_no_room_for_take_turns_in_files(tmp_path: Path) -> None:
    """With a real model: a tiny one's prompt is computed sooner than any file is read, and then nothing is written."""
    (tmp_path / "cache").symlink_to(Path(cache_dir()), target_is_directory=True)
    options = ("--disk-cache", str(tmp_path / "kv"), "--durability", "none", *SMALL)
    with serving(tmp_path, *options, model="smollm2") as server:
        names = [opened(server, f"s{index}") for index in range(4)]
        for index, name in enumerate(names):
            turn(server, name, tokens(index, 220))
        for name in names:
            saved = server.http.get(f"/v1/sessions/{name}").json()["tokens"]
            cache = turn(server, name, tokens(9, 3))["cache"]
            assert isinstance(cache, dict)
            assert cache["cached_tokens"] >= saved - 1
        assert server.metric("sojourn_kv_fetches_total", least=1) > 0
        pools = server.http.get("/v1/pools").json()
        assert pools["identity"]


def test_a_folder_that_cannot_be_used_is_said_once_and_counted(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("no folder")
    with serving(tmp_path, "--disk-cache", str(tmp_path / "kv"), "--durability", "none", *SMALL) as server:
        opened(server, "talk")
        turn(server, "talk", tokens(1, 50))
        assert server.metric('sojourn_kv_tier_usable{tier="disk",use="read"}') == 0
        assert len(server.lines_with("WARNING", "disk cache", "serving goes on without it")) == 1
        assert server.stop() == 0
