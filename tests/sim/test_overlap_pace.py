"""With a step in flight what is evicted comes a step late. Whoever runs over a cache that fills the pool must not notice."""

from random import Random

import pytest

from tests.support.fake_backend import VOCAB_SIZE
from tests.support.world import World, WorldConfig

STEPS = 120
CONTEXT = 1_000
DEPTHS = (0, 1)


def prompt(rng: Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def full_of_cache(*, page_size: int, running: int, depth: int, rng: Random) -> World:
    """A world whose pool has nothing but pages that can be evicted."""
    tokens = max(5 * CONTEXT // 2, running * 320)
    config = WorldConfig(
        page_size=page_size,
        num_pages=tokens // page_size,
        context=CONTEXT,
        seqs_max=running + 2,
        step_tokens_max=2 * running + 32,
        chunk_tokens_max=32,
    )
    world = World(config, depth=depth)
    for _ in range(2 * tokens // CONTEXT + 1):
        world.submit(prompt(rng, CONTEXT // 2), 2)
        world.run()
    return world


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("page_size", "running"), [(1, 8), (1, 24), (4, 24), (16, 48)])
def test_decodes_over_a_full_cache_advance_in_every_step_and_others_are_admitted(
    page_size: int, running: int, depth: int
) -> None:
    rng = Random(1)
    world = full_of_cache(page_size=page_size, running=running, depth=depth, rng=rng)
    talking = [world.submit(prompt(rng, 4), CONTEXT // 2) for _ in range(running)]
    while any(not world.records[request].tokens for request in talking):
        world.step()
    before = sum(len(world.records[request].tokens) for request in talking)
    for number in range(STEPS):
        if number == STEPS // 4:
            late = world.submit(prompt(rng, 30), 1)
        world.step()
    told = sum(len(world.records[request].tokens) for request in talking) - before
    assert world.records[late].end is not None
    assert told > 0.95 * running * STEPS
    assert world.scheduler.statistics().retractions == 0


def test_one_that_was_refused_is_admitted_when_pages_come_that_others_use_up_as_they_come() -> None:
    """The watchdog, which would stop the engine, has nothing to say meanwhile."""
    rng = Random(1)
    config = WorldConfig(
        page_size=1, num_pages=1_400, context=1_300, seqs_max=12, step_tokens_max=64, chunk_tokens_max=32
    )
    world = World(config, depth=1)
    world.submit(prompt(rng, 900), 100)
    for _ in range(8):
        world.submit(prompt(rng, 4), 500)
    for _ in range(60):
        world.step()
    late = world.submit(prompt(rng, 600), 4)
    for _ in range(1_200):
        if world.records[late].tokens:
            break
        world.step()
    assert world.records[late].tokens
    world.run()
