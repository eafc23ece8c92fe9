"""What hot conversations notice of cold ones that come back, on a clock that moves by what steps cost.

The same world as `benchmarks/pressure.py` in small, without a machine's noise: a step costs 4 ms and 0.65 ms a row, about
what SmolLM2 takes on two cores. 12 hot conversations think between turns; 25 cold ones come back at once to a pool for a
third of all.
"""

import heapq
import random
import statistics

import pytest

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.scheduler.admission import HELD_UP_STEPS
from sojourn.sessions.service import TurnParams
from tests.support.fake_backend import VOCAB_SIZE
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig

STEP_S, ROW_S = 0.004, 0.00065
HOT, COLD = 12, 25
HOT_TOKENS, COLD_TOKENS, NEW, OUT = 48, 320, 8, 4
POOL_PAGES = 192
THINK_S = 1.0
TURNS = 4


class Scene:
    """Records of turns with the moment each was due; it may have had to wait for the step that ran then."""

    def __init__(self, *, chunk: int, depth: int) -> None:
        config = WorldConfig(
            page_size=16,
            num_pages=POOL_PAGES,
            context=512,
            seqs_max=HOT + COLD,
            step_tokens_max=chunk + HOT + COLD,
            chunk_tokens_max=chunk,
        )
        self.world = SessionWorld(config, depth=depth)
        self.clock = self.world.clock
        inner = self.world.backend.step

        def step(batch: Batch) -> BatchOutput:
            self.clock.now += STEP_S + ROW_S * len(batch.tokens)
            return inner(batch)

        self.world.backend.step = step  # type: ignore[method-assign]
        self._rng = random.Random(5)
        self._names = [self.world.service.open(f"talk{number}") for number in range(HOT + COLD)]
        self.sources: list[str] = []
        for number in [*range(HOT, HOT + COLD), *range(HOT), *range(HOT)]:
            self._say(number, COLD_TOKENS if number >= HOT else HOT_TOKENS)
            self.world.run()

    def _say(self, number: int, count: int = NEW) -> Record:
        new = [self._rng.randrange(VOCAB_SIZE) for _ in range(count)]
        return self.world.turn(self._names[number], new, TurnParams(max_new_tokens=OUT))

    def _think(self) -> float:
        return self.clock.now + THINK_S * self._rng.uniform(0.5, 1.5)

    def run(self, *, with_cold: bool) -> list[float]:
        """Seconds to the first token of hot turns; with cold ones only while one of those waits for its answer."""
        due = [(self._think(), number) for number in range(HOT)]
        heapq.heapify(due)
        left = [TURNS] * HOT
        cold = [self._say(number) for number in range(HOT, HOT + COLD)] if with_cold else []
        alive: dict[int, tuple[float, Record]] = {}
        firsts: list[float] = []
        while alive or (due and not with_cold) or any(record.end is None for record in cold):
            while due and due[0][0] <= self.clock.now:
                at, number = heapq.heappop(due)
                alive[number] = at, self._say(number)
            if not self.world.service.has_work:
                self.clock.now = max(self.clock.now, due[0][0])
                continue
            before = self.clock.now
            self.world.step()
            self.clock.now += 0.0001 * (self.clock.now == before)  # nothing ran, or it runs beside us
            for number, (at, record) in list(alive.items()):
                if record.end is not None:
                    del alive[number]
                    usage = record.end.usage
                    assert usage.first_token_at is not None
                    firsts.append(usage.first_token_at - at)
                    self.sources.append(usage.cached_source)
                    left[number] -= 1
                    if left[number]:
                        heapq.heappush(due, (self._think(), number))
        return firsts


@pytest.mark.parametrize(("chunk", "depth", "bound"), [(32, 0, 2.0), (256, 0, 2.0), (32, 1, 3.0)])
def test_hot_turns_wait_little_longer_when_cold_ones_come_back(chunk: int, depth: int, bound: float) -> None:
    """With overlap a turn waits for a step more, which is planned already when it comes."""
    scene = Scene(chunk=chunk, depth=depth)
    calm = scene.run(with_cold=False)
    scene.sources.clear()
    pressed = scene.run(with_cold=True)
    assert len(pressed) > 2 * HOT
    assert statistics.median(pressed) < bound * statistics.median(calm)
    assert scene.sources.count("session") > 0.9 * len(scene.sources), "what is in use was pushed out"
    assert scene.world.world.scheduler.statistics().retractions == 0
    assert scene.world.world.loop.statistics().steps < COLD * HELD_UP_STEPS
    scene.world.close_all()
