"""A server with a second model that guesses: its pool is one of the pools, wherever pages are shown."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.api.conftest import quiet
from tests.api.test_life import until
from tests.api.test_metrics import POOL, link_with_a_beat, values
from tests.api.test_sessions import alone, ids, open_session, turn
from tests.support.server import Server, serving, write_tiny_gguf

from sojourn.api import wire
from sojourn.api.metrics import Metrics

DRAFTS = wire.PoolPages("draft", 10, 0, 0, 1, 0, 9, 0, evictable=0)
SIZE = ("--context", "512", "--pool-tokens", "2048", "--chunk", "64", "--drafts-max", "4")


@pytest.fixture(scope="module")
def guessing(models: Path) -> Iterator[Server]:
    draft = write_tiny_gguf(models, architecture="gemma3")
    with serving(models, *SIZE, "--speculate", str(draft)) as server:
        yield server


@pytest.mark.http_scenario
def test_its_pages_are_shown_and_come_back(guessing: Server) -> None:
    session = open_session(guessing)
    said = turn(guessing, session, token_ids=ids(40), max_tokens=24)["token_ids"]
    more = turn(guessing, session, token_ids=ids(9, 1), max_tokens=24)["token_ids"]
    shown = guessing.http.get("/v1/pools").json()
    assert [pool["pool"] for pool in shown["pools"]] == ["full", "draft"]
    assert shown["identity"] is True
    draft = shown["pools"][1]
    assert (draft["total"], draft["tree"], draft["running"]) == (2048 // 16 + 1, 0, 0)
    assert 0 < draft["idle"] <= -(-(49 + 48) // 16), "nothing past the end of the turn"
    own = guessing.http.get(f"/v1/sessions/{session}").json()["pages"]
    assert own["draft"] == {"own": draft["idle"], "leased": 0}
    assert until(guessing, "sojourn_kv_pages", draft["idle"], pool="draft", state="session_idle") == draft["idle"]
    assert guessing.lines_with("draft 128"), "said at the start"
    guessing.http.delete(f"/v1/sessions/{session}").raise_for_status()
    assert guessing.http.get("/v1/pools").json()["pools"][1]["idle"] == 0
    assert alone(guessing, ids(40), 24) == said
    assert alone(guessing, [*ids(40), *said, *ids(9, 1)], 24) == more
    quiet(guessing)


def test_a_full_draft_pool_is_not_a_full_engine() -> None:
    """Nobody waits for its pages, so boards and routers are not told of them."""
    link = link_with_a_beat()
    assert link.heartbeat is not None
    link.heartbeat = msgspec.structs.replace(link.heartbeat, pools=[POOL, DRAFTS])
    shown = values(Metrics(link, lambda: True, "1", "vllm"))
    assert shown["sojourn_kv_pages", frozenset(["draft", "running", "device"])] == 9
    assert shown["vllm:kv_cache_usage_perc", frozenset(["tiny"])] == pytest.approx(0.2)
