"""Demand far above the pool: nobody is wedged or starved, what is in use stays, and every answer is the undisturbed one.

Turns of many conversations at once over the whole engine and a back end that notices every wrong page. Chance is seeded.
"""

import random
from dataclasses import dataclass, field

import pytest

from sojourn.sessions.service import TurnParams
from tests.support.fake_backend import VOCAB_SIZE, expected_completion
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig

STEPS_MAX = 60_000


@dataclass(eq=False)
class Talk:
    """One conversation: what it has said so far, by the model of a child, and the turn that runs."""

    name: str
    is_hot: bool
    history: list[int] = field(default_factory=list)
    turn: Record | None = None
    prompt: list[int] = field(default_factory=list)
    started_at: int = 0
    sources: list[str] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # steps to the end of each turn


class Crowd:
    """Hot ones speak as soon as they may; the cold ones come back in bursts, each after long."""

    def __init__(
        self, seed: int, config: WorldConfig, *, hot: int, cold: int, depth: int, first: tuple[int, int]
    ) -> None:
        self.rng = random.Random(f"crowd {seed}")
        self.world = SessionWorld(config, depth=depth)
        self.first = first  # tokens of a first prompt, of a hot one and of a cold one
        self.talks = [self._open(number, is_hot=number < hot) for number in range(hot + cold)]
        self.steps = 0

    def _open(self, number: int, *, is_hot: bool) -> Talk:
        return Talk(self.world.service.open(f"{'hot' if is_hot else 'cold'}{number}"), is_hot)

    def speak(self, talk: Talk) -> None:
        count = self.rng.randint(2, 6) if talk.history else self.first[not talk.is_hot]
        new = [self.rng.randrange(VOCAB_SIZE) for _ in range(count)]
        talk.prompt = [*talk.history, *new]
        talk.turn = self.world.turn(talk.name, new, TurnParams(max_new_tokens=self.rng.randint(2, 6)))
        talk.started_at = self.steps

    def step(self) -> None:
        self.world.step()
        self.steps += 1
        for talk in self.talks:
            if talk.turn is not None and talk.turn.end is not None:
                self._ended(talk, talk.turn)

    def _ended(self, talk: Talk, record: Record) -> None:
        end, talk.turn = record.end, None
        assert end is not None
        count = len(end.output_ids)
        assert record.tokens == expected_completion(talk.prompt, count, frozenset()), "not what an undisturbed run says"
        talk.history = [*talk.prompt, *record.tokens]
        talk.sources.append(end.usage.cached_source)
        talk.waits.append(self.steps - talk.started_at)

    def run(self, *, bursts: int, hot_turns: int) -> None:
        """Everybody speaks once; then the hot go on, and the cold come back in bursts."""
        for talk in self.talks:
            self.speak(talk)
        hot = [talk for talk in self.talks if talk.is_hot]
        cold = [talk for talk in self.talks if not talk.is_hot]
        every = hot_turns * len(hot) // bursts
        done = 0
        while self.world.service.has_work:
            assert self.steps < STEPS_MAX, self.world.world.scheduler.statistics()
            self.step()
            for talk in hot:
                if talk.turn is None and 0 < len(talk.sources) <= hot_turns:
                    self.speak(talk)
            if done < bursts and sum(len(talk.sources) for talk in hot) >= (done + 1) * every:
                done += 1
                for talk in cold:
                    if talk.turn is None:
                        self.speak(talk)
        assert done == bursts
        assert all(len(talk.sources) == hot_turns + 1 for talk in hot)


@pytest.mark.parametrize("depth", [0, 1])
def test_three_times_the_pool_with_twelve_hot_and_twenty_five_cold(depth: int) -> None:
    """37 conversations in a pool for a third of what they come to; the hot ones alone would fill most of it."""
    config = WorldConfig(page_size=4, num_pages=224, context=160, seqs_max=8, step_tokens_max=24, chunk_tokens_max=16)
    crowd = Crowd(1, config, hot=12, cold=25, depth=depth, first=(8, 80))
    crowd.run(bursts=2, hot_turns=6)
    demand = sum(-(-len(talk.history) // 4) for talk in crowd.talks)
    assert demand > 3 * config.num_pages
    assert crowd.world.slots.slot_statistics().demotions > 0
    later = [source for talk in crowd.talks if talk.is_hot for source in talk.sources[2:]]
    assert later.count("session") >= 0.8 * len(later), "what is in use was pushed out"
    crowd.world.close_all()


@pytest.mark.parametrize("seed", range(12))
def test_random_pressure_wedges_and_starves_nobody(seed: int) -> None:
    """Pools for little more than one conversation, windows or none, retraction forced or not."""
    rng = random.Random(f"pressure {seed}")
    size = rng.choice([1, 2, 4, 8])
    context = rng.choice([48, 64])
    config = WorldConfig(
        cache=rng.choice(["radix", "radix", "none"]),
        page_size=size,
        num_pages=-(-context // size) + rng.choice([0, 1, 8]),
        window=rng.choice([0, 0, 7]),
        context=context,
        seqs_max=rng.choice([2, 3, 8]),
        step_tokens_max=rng.choice([8, 12, 24]),
        chunk_tokens_max=rng.choice([3, 8]),
        retract_every=rng.choice([0, 0, 7]),
    )
    crowd = Crowd(seed, config, hot=3, cold=5, depth=rng.choice([0, 1, 2]), first=(rng.choice([6, 16]), 16))
    crowd.run(bursts=2, hot_turns=2)
    crowd.world.close_all()
