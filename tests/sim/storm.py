"""Swarm fuzzing of the whole engine: each seed draws a world, weights of events and the events. Same seed, same run."""

import random
from collections import Counter
from dataclasses import replace

from sojourn.core.step import SamplingParams
from sojourn.sessions.service import TurnParams
from tests.sim.engine_world import Alive, Ask, EngineWorld
from tests.support.fake_backend import VOCAB_SIZE
from tests.support.world import WorldConfig

EVENTS = 90
SESSIONS_MAX = 6
ALIVE_MAX = 8
TIMEOUT_S = 50.0


def draw_config(rng: random.Random, cache: str) -> WorldConfig:
    draw, choice = rng.randint, rng.choice
    size = choice([1, 1, 2, 4, 4, 8, 16, 64, 256])
    window = choice([0, draw(1, 6), draw(1, min(2 * size, 64) + 12)])
    chunk = choice([draw(1, 4), draw(1, 2 * size + 3)]) if size < 16 else draw(size // 4, 2 * size + 3)
    full = draw(6, 24) if size < 16 else draw(4, 9) if size < 256 else draw(3, 5)
    swa_min = min(full, 2 * (-(-window // size) + 1) + -(-chunk // size))
    seqs = choice([1, 2, 3, 4, 8])
    return WorldConfig(
        cache=cache,
        page_size=size,
        num_pages=full,
        swa_pages=choice([full, swa_min, draw(swa_min, full)]),
        window=window,
        context=max(4, full * size + choice([0, 1, 1 + size, -draw(0, size)])),
        seqs_max=seqs,
        step_tokens_max=seqs + choice([0, draw(0, 8), 2 * chunk] if size < 16 else [chunk // 2, 2 * chunk]),
        chunk_tokens_max=chunk,
        retract_every=choice([0, 0, 0, 1, 2, 3, 7]),
    )


def with_drafts(rng: random.Random, config: WorldConfig) -> WorldConfig:
    drafts = rng.choice([0, rng.randint(1, 3), rng.randint(1, 12)])
    more = rng.choice([0, 1, 1]) * (config.chunk_tokens_max + config.seqs_max * drafts)
    return replace(
        config,
        step_tokens_max=config.step_tokens_max + (more if drafts else 0),
        drafts_max=drafts,
        drafts_right=rng.choice([0.0, 0.5, 0.9, 0.9, 1.0]),
        drafts_adapt=rng.random() < 0.3,
        runs_early=rng.random() < 0.5,
        draft_pages=rng.choice([0, 0, config.num_pages, rng.randint(1, config.num_pages)]) if drafts else 0,
    )


def with_tier(rng: random.Random, config: WorldConfig) -> WorldConfig:
    return replace(config, tier_seed=rng.choice([None, rng.randrange(1000)]), tier_ahead=rng.random() < 0.5)


class Storm:
    """One seed's choices over one engine."""

    def __init__(self, seed: int, cache: str) -> None:
        self.rng = random.Random(f"storm {seed} {cache}")
        draw, choice = self.rng.randint, self.rng.choice
        config = with_drafts(random.Random(f"drafts {seed} {cache}"), draw_config(self.rng, cache))
        config = with_tier(random.Random(f"tier {seed} {cache}"), config)
        self.world = EngineWorld(
            config,
            depth=choice([0, 1, 1, 2]),
            publishes=self.rng.random() < 0.8,
            idle_timeout_s=choice([None, TIMEOUT_S]),
        )
        self.weights = {
            "step": draw(20, 120),
            "turn": draw(10, 60),
            "open": draw(2, 8),
            "plain": choice([0, 5, 20]),
            "abort": choice([0, 2, 10]),
            "interrupt": choice([0, 2, 10]),
            "close": choice([0, 1, 5]),
            "rewind": choice([0, 2, 8]),
            "fork": choice([0, 1, 5]),
            "wait": choice([0, 0, 3]),
            "flush": choice([0, 0, 1]),
            "save": 1 if config.tier_seed is not None and config.tier_seed % 3 == 0 else 0,
            "calm": choice([0, 0, 1]),
            "run_all": choice([0, 1]),
        }
        self.alphabet = [self.rng.randrange(VOCAB_SIZE) for _ in range(choice([1, 2, 3]))]
        self.namespaces = choice([1, 1, 2])
        self.new_max = max(1, min(choice([6, 12, config.context // 3]), config.context // 2))

    def run(self, events: int = EVENTS) -> Counter[str]:
        names, weights = list(self.weights), list(self.weights.values())
        self.open()
        for event in self.rng.choices(names, weights, k=events):
            getattr(self, event)()
            if event != "step":
                self.world.check.check()
            self.world.audit()
        for alive in list(self.world.alive.values())[2:]:  # two run to their end undisturbed
            self.world.end(alive, undo=True)
        self.world.wind_down()
        return self.world.marks

    # -- events
    def step(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.world.step()

    def run_all(self) -> None:
        self.world.run()

    def calm(self) -> None:
        self.world.calm()

    def open(self) -> None:
        if len(self.world.known) < SESSIONS_MAX:
            self.world.open(self._namespace(), self.rng.choice([None, None, 2 * TIMEOUT_S]))

    def turn(self) -> None:
        name = self._session(idle=self.rng.random() < 0.8)
        if name is not None and len(self.world.alive) < ALIVE_MAX:
            namespace = self._namespace() if self.rng.random() < 0.1 else None
            self.world.turn(name, self._tokens(0), self._ask(), namespace)

    def plain(self) -> None:
        if len(self.world.alive) < ALIVE_MAX:
            prompt = self._tokens(0) * self.rng.choice([1, 1, 1, 4])
            self.world.plain(prompt, self._ask(), self._namespace())

    def abort(self) -> None:
        self._end(undo=True)

    def interrupt(self) -> None:
        self._end(undo=False)

    def close(self) -> None:
        name = self._session()
        if name is not None:
            self.world.close(name)

    def rewind(self) -> None:
        name = self._session()
        if name is not None:
            self.world.rewind(name, self.rng.randint(0, len(self.world.known[name].history)))

    def fork(self) -> None:
        name = self._session()
        if name is not None and len(self.world.known) < SESSIONS_MAX:
            self.world.fork(name, self.rng.randint(0, len(self.world.known[name].history)))

    def wait(self) -> None:
        self.world.clock.now += self.rng.choice([1.0, TIMEOUT_S / 2, TIMEOUT_S])

    def flush(self) -> None:
        self.world.slots.flush()

    def save(self) -> None:
        """All that is kept goes to the tier, too. The tree stays."""
        for name in self.world.known:
            self.world.slots.demote(name)
        if self.world.inside.world.radix is not None:
            self.world.inside.world.radix.save(lambda: False)

    # -- choices
    def _end(self, *, undo: bool) -> None:
        alive: list[Alive] = list(self.world.alive.values())
        if alive:
            self.world.end(self.rng.choice(alive), undo=undo)
        elif (name := self._session()) is not None:
            self.world.end_nothing(name)

    def _session(self, *, idle: bool = False) -> str | None:
        names = [name for name, known in self.world.known.items() if not idle or known.turn is None]
        return self.rng.choice(names) if names else None

    def _namespace(self) -> str:
        return f"n{self.rng.randrange(self.namespaces)}"

    def _tokens(self, least: int) -> list[int]:
        return self.rng.choices(self.alphabet, k=self.rng.randint(least, self.new_max))

    def _ask(self) -> Ask:
        draw, choice = self.rng.randint, self.rng.choice
        stop_ids = frozenset({self.rng.randrange(VOCAB_SIZE)}) if self.rng.random() < 0.3 else frozenset()
        sampling = choice(
            [SamplingParams(), SamplingParams(1.0, seed=draw(0, 2)), SamplingParams(presence_penalty=0.5)]
        )
        room = None if self.world.config.context <= 64 else 40
        count = choice([0, 1, draw(1, 6), draw(1, 6), draw(1, 30), room])
        return Ask(
            TurnParams(sampling, count, stop_ids=stop_ids, ignore_eos=choice([True, False])), choice([0, 0, draw(1, 8)])
        )
