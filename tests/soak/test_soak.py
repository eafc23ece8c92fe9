"""The soak of `make soak`, on a tiny model and short; and that it can fail."""

from pathlib import Path

import pytest

from tests.load.caller import Sizes
from tests.load.memory import MIB
from tests.soak.probe import Times, percentile
from tests.soak.report import Findings, slowdown
from tests.soak.run import soak
from tests.support.server import serving

SECONDS = 40.0
TINY = ("--context", "512", "--pool-tokens", "1536", "--chunk", "64", "--strict-mem-check", "1", "--speculate", "ngram")
SIZES = Sizes("tiny-llama", vocab=258, context=512, long_prompt=150, answer=16, long_answer=60)


@pytest.mark.load
def test_known_conversations_come_back_word_for_word_from_wherever_they_went(tmp_path: Path) -> None:
    with serving(tmp_path, *TINY, "--disk-cache", str(tmp_path / "kv")) as server:
        findings = soak(server, seconds=SECONDS, seed=1, sizes=SIZES)
        assert server.stop() == 0
    done, counted = findings.summary.done, findings.counted
    for act in (
        "turn", "turn, streamed", "append, then the rest", "left in mid-turn", "interrupted and undone", "rewind", "fork",
        "exported, closed, imported",
    ):  # fmt: skip
        assert done[f"known conversation: {act}"] > 0, act
    assert done["probe"] > 0
    assert counted["sojourn_demotions_total"] > 0
    assert sum(count for name, count in done.items() if name.startswith("resumed from") and "part" in name) > 0
    assert done["resumed from session, all"] > 0
    assert done["resumed from disk, all"] > 0
    assert counted["sojourn_kv_promoted_bytes_total (prompt)"] > 0
    assert counted["sojourn_kv_pages_leaked"] == 0


def steady(growth: float = 0.0, slower: float = 1.0) -> Findings:
    """Ten minutes of samples; the last quarter after the warm-up is `slower`."""
    findings = Findings("ten minutes")
    for second in range(601):
        for part in findings.summary.growth.values():
            warm_up = min(second, 200) * MIB
            part.add(float(second), round(warm_up + growth * second * MIB / 60))
        took = (0.5 if second < 200 else 0.1) * (slower if second > 500 else 1.0)
        for _, times in findings.timed:
            times.samples.append((float(second), took))
    return findings


def test_what_stays_as_it_was_after_the_warm_up_holds() -> None:
    assert steady().broken() == []
    assert steady(growth=0.9, slower=1.19).broken() == []


def test_a_server_that_grows_or_slows_down_does_not_hold() -> None:
    assert len(steady(growth=1.1).broken()) == 2
    assert len(steady(slower=1.25).broken()) == 2
    few = steady()
    few.first_token.samples = few.first_token.samples[::10]
    assert len(few.broken()) == 1


def test_quarters_are_of_the_time_after_the_first_third() -> None:
    times = Times([(float(second), float(second)) for second in range(1201)])
    assert [(quarter[0], quarter[-1]) for quarter in times.quarters()] == [
        (400.0, 599.0), (600.0, 799.0), (800.0, 999.0), (1000.0, 1199.0),
    ]  # fmt: skip
    assert slowdown(times) == pytest.approx(1198 / 598, rel=0.01)
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([], 0.99) == 0.0
