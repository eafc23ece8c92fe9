"""One session of 20,000 tokens among small ones: what is quiet in a tiny world may be loud in a long one."""

import random

import numpy as np
import pytest

from sojourn.core.step import Pool
from tests.sim.world import Run, Session, World, WorldConfig

LENGTH = 20_000


def run_all(world: World, run: Run, rng: random.Random, outputs: int) -> None:
    """Prefill in chunks, then decode with drafts now and then."""
    while run.launched + 1 < run.cached.num_tokens:
        assert world.launch(run, world.config.chunk, 0, 0, rng.random() < 0.5)
    for _ in range(outputs):
        drafts = rng.choice([0, 0, 3])
        assert world.launch(run, 1, drafts, rng.randint(0, drafts), rng.random() < 0.5)
    while world.flights:
        world.retire()
    world.audit()


def turn(world: World, session: Session, rng: random.Random, count: int) -> Run:
    run = world.start(np.array([rng.randrange(50) for _ in range(count)], dtype=np.int32), session)
    assert run is not None
    return run


@pytest.mark.parametrize("cache", ["radix", "none"])
@pytest.mark.parametrize(("size", "window"), [(16, 0), (16, 512), (1, 100)])
def test_a_long_conversation(cache: str, size: int, window: int) -> None:
    rng = random.Random(f"{cache} {size} {window}")
    full = 24_000 // size
    world = World(WorldConfig(size, window, full, full, 512, 22_000, cache, depth=1, alphabet=50))
    session, small = world.open(), world.open()
    run = turn(world, session, rng, LENGTH)
    run_all(world, run, rng, 8)
    world.finish(run, 1)
    settled = len(session.history)
    assert settled >= LENGTH
    for index in range(12):
        run = turn(world, session, rng, 20)
        assert run.cached.prefix_len >= settled - 1, "only the new tokens are computed"
        other = turn(world, small, rng, 5)
        run_all(world, run, rng, 40)
        run_all(world, other, rng, 4)
        world.finish(other, 0)
        if index % 4 == 3:
            world.abort(run)
        else:
            world.finish(run, rng.randint(-1, 2))
            settled = len(session.history)
        world.audit()
    held = world.cache.pages_held(session.name)
    pages = -(-settled // size)
    assert pages <= held <= pages + (-(-window // size) + 1 if window else 0)
    world.rewind(session, settled - 30)
    run = turn(world, session, rng, 10)
    if cache == "radix":
        assert run.cached.prefix_len >= settled - 30 - size - window
    run_all(world, run, rng, 4)
    world.abort(run)
    if world.radix is not None:
        assert world.radix.tree_statistics().num_nodes < 60
        assert world.book.ledgers[Pool.FULL].num_free > 0
    world.wind_down()
