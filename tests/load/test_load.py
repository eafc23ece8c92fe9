"""The load run of `make load`, on a tiny model and short; and that it can fail."""

from pathlib import Path

import pytest

from tests.load.caller import Sizes
from tests.load.memory import MIB, Growth
from tests.load.run import run
from tests.support.server import serving

SECONDS = 60.0
TINY = ("--context", "512", "--pool-tokens", "4096", "--chunk", "64")
SIZES = Sizes("tiny-llama", vocab=258, context=512, long_prompt=200)
# A line through half a minute of samples swings by some MiB a minute when an allocator takes one more arena. What this
# finds is a leak of a few kilobytes per turn; `make load` has the time to find less.
GROWTH_MAX = 30.0
ACTS = (
    "turn", "turn, streamed", "append", "disconnect in mid-stream", "disconnect in prefill", "disconnect, not streamed",
    "interrupt", "rewind", "fork", "close", "close in mid-turn", "two turns at once", "turn repeated", "completion",
    "completion, left", "chat completion", "native, aborted by id", "left: undone", "looks at /live and /v1/pools",
    "exported, closed, imported",
)  # fmt: skip


@pytest.mark.load
def test_every_kind_of_caller_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, *TINY) as server:
        summary = run(server, seconds=SECONDS, seed=1, sizes=SIZES, growth_max=GROWTH_MAX)
        assert server.stop() == 0
    for act in ACTS:
        assert summary.done[act] > 0, act


def test_growth_is_the_slope_after_the_first_third() -> None:
    growth = Growth()
    for second in range(91):
        warm_up = min(second, 30) * 50 * MIB
        growth.add(float(second), warm_up + second * MIB // 30)
    assert growth.mib_per_minute == pytest.approx(2.0, rel=0.01)
    flat = Growth([(float(second), 7.0 * MIB) for second in range(10)])
    assert flat.mib_per_minute == 0.0
