"""Swarm fuzzing: each seed draws its own world and its own weights of events, then the events. Same seed, same run."""

import random
from collections import Counter

import numpy as np

from sojourn.core.step import TokenArray
from tests.sim.world import Run, Session, World, WorldConfig

EVENTS = 250


def draw_config(rng: random.Random, cache: str) -> WorldConfig:
    size = rng.choice([1, 1, 2, 4, 4, 8])
    window = rng.choice([0, rng.randint(1, 6), rng.randint(1, 24)])
    full = rng.randint(6, 24)
    chunk = rng.randint(1, 2 * size + 3)
    swa_min = 2 * (-(-window // size) + 1) + -(-(chunk + 4) // size)
    swa = rng.choice([full, min(full, swa_min), rng.randint(min(full, swa_min), full)])
    context = full * size if swa_min <= swa else swa * size
    return WorldConfig(
        page_size=size,
        window=window,
        full_pages=full,
        swa_pages=swa,
        chunk=chunk,
        context=context,
        cache=cache,
        publishes=rng.random() < 0.8,
        depth=rng.choice([0, 0, 1, 2]),
        alphabet=rng.choice([1, 2, 3]),
        draft_pages=random.Random(f"drafts {full} {swa} {chunk} {window}").choice([0, full, 2 + full // 3]),
    )


class Swarm:
    """One seed's choices over one world."""

    def __init__(self, seed: int, cache: str) -> None:
        self.rng = random.Random(f"{seed} {cache}")
        self.world = World(draw_config(self.rng, cache))
        draw, choice = self.rng.randint, self.rng.choice
        self.weights = {
            "step": draw(20, 200),
            "retire": draw(0, 100),
            "turn": draw(5, 80),
            "open": draw(1, 6),
            "plain": choice([0, 5, 20]),
            "publish": choice([0, 5, 20]),
            "finish": draw(2, 60),
            "abort": choice([0, 2, 10]),
            "retract": choice([0, 1, 8]),
            "readmit": draw(5, 40),
            "close": choice([0, 1, 5]),
            "rewind": choice([0, 1, 8]),
            "fork": choice([0, 1, 5]),
            "flush": choice([0, 0, 1]),
            "probe": choice([0, 1]),
            "intrude": choice([0, 1]),
        }
        self.running_max = draw(1, 4)
        self.namespaces = choice([1, 1, 2])

    def run(self, events: int = EVENTS) -> Counter[str]:
        names, weights = list(self.weights), list(self.weights.values())
        for event in self.rng.choices(names, weights, k=events):
            getattr(self, event)()
            self.world.audit()
        self.world.wind_down()
        return self.world.marks

    # -- events
    def step(self) -> None:
        run = self._running()
        if run is not None:
            drafts = self.rng.choice([0, 0, self.rng.randint(0, 4)])
            width = self.rng.randint(1, self.world.config.chunk)
            self.world.launch(run, width, drafts, self.rng.randint(0, drafts), self.rng.random() < 0.5)

    def retire(self) -> None:
        if self.world.flights:
            self.world.retire()

    def open(self) -> None:
        if len(self.world.sessions) < 5:
            self.world.open(self._namespace())

    def turn(self) -> None:
        session = self._idle_session()
        if session is None or len(self.world.running) >= self.running_max:
            return
        new = self._tokens(0 if len(session.history) else 1)
        if len(session.history) + len(new) + 1 < self.world.config.context:
            self.world.start(new, session)
        else:
            self.world.close(session)

    def plain(self) -> None:
        if len(self.world.running) < self.running_max:
            self.world.start(self._tokens(1), namespace=self._namespace())

    def publish(self) -> None:
        run = self._running()
        if run is not None:
            self.world.publish(run)

    def finish(self) -> None:
        run = self._running()
        if run is not None and self.world.can_finish(run):
            self.world.finish(run, self.rng.randint(-1, 3))

    def abort(self) -> None:
        runs = [*self.world.running, *self.world.waiting]
        if runs:
            self.world.abort(self.rng.choice(runs))

    def retract(self) -> None:
        run = self._running()
        if run is not None:
            self.world.retract(run)

    def readmit(self) -> None:
        if self.world.waiting and len(self.world.running) < self.running_max:
            self.world.readmit(self.world.waiting[0])

    def close(self) -> None:
        if self.world.sessions:
            self.world.close(self.rng.choice(list(self.world.sessions.values())))

    def rewind(self) -> None:
        session = self._idle_session()
        if session is not None:
            self.world.rewind(session, self.rng.randint(0, len(session.history)))

    def fork(self) -> None:
        session = self._idle_session()
        if session is not None and len(self.world.sessions) < 6:
            self.world.fork(session, self.rng.randint(0, len(session.history)))

    def flush(self) -> None:
        self.world.cache.flush()

    def intrude(self) -> None:
        active = [session for session in self.world.sessions.values() if session.run is not None]
        if active:
            self.world.intrude(self.rng.choice(active))

    def probe(self) -> None:
        if not self.world.running and not self.world.flights:
            self.world.everything_is_obtainable()

    # -- choices
    def _running(self) -> Run | None:
        return self.rng.choice(self.world.running) if self.world.running else None

    def _idle_session(self) -> Session | None:
        idle = [session for session in self.world.sessions.values() if session.run is None]
        return self.rng.choice(idle) if idle else None

    def _namespace(self) -> str:
        return f"n{self.rng.randrange(self.namespaces)}"

    def _tokens(self, least: int) -> TokenArray:
        most = max(least, min(12, self.world.config.context // 3))
        count = self.rng.randint(least, most)
        return np.array([self.rng.randrange(self.world.config.alphabet) for _ in range(count)], dtype=np.int32)
