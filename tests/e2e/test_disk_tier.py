"""KV from files is the KV that was computed: on real models, to the bit of every log-probability, after a restart and under
pressure, and with the files damaged.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.core.step import SamplingParams
from sojourn.core.tier import TierStatistics
from sojourn.disk.store import DiskStore
from sojourn.models.store import LoadedModel
from sojourn.sessions.service import TurnParams
from tests.e2e.conversations import _exact
from tests.e2e.engines import Heard, RealEngine, Shape, run_alone
from tests.support.world import check_all_free, check_identity

GUARD_S = 120.0
PARAMS = TurnParams(SamplingParams(0.8, top_k=40, seed=7, num_logprobs=0), 6, ignore_eos=True)


class Folder:
    """One folder, and the engines opened on it one after another."""

    def __init__(self, path: Path, model: LoadedModel) -> None:
        self.path = path
        self.model = model
        self.warnings: list[str] = []
        self.store: DiskStore | None = None
        self.engine: RealEngine | None = None
        self.chance = random.Random(str(model.info.name))

    def open(self, shape: Shape) -> RealEngine:
        self.close()
        self.store = DiskStore(self.path, 1 << 32, time.monotonic, self.warnings.append)
        self.engine = RealEngine(self.model, shape, pages=self.store)
        return self.engine

    def close(self) -> None:
        if self.engine is not None and self.store is not None:
            check_identity(self.engine.cache)
            self.engine.close()
            self.store.close(GUARD_S)
        self.engine = self.store = None

    def tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(self.model.packed.config.vocab_size) for _ in range(count)]


@pytest.fixture(params=["smollm2", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "kv", request.getfixturevalue(request.param))
    yield folder
    folder.close()
    assert not folder.warnings


def shape_for(folder: Folder, page_size: int = 16, depth: int = 0) -> Shape:
    """Past the window, if there is one."""
    context = 640 if folder.model.packed.config.attention.sliding_window else 320
    pages = -(-2 * context // page_size)
    return Shape(page_size, (pages, pages), context, 128, 132, 4, "radix", depth=depth)


def turn(engine: RealEngine, name: str, new: list[int]) -> Heard:
    heard = engine.listen(engine.service.start_turn(name, new, PARAMS))
    engine.run()
    return heard


def told(engine: RealEngine) -> TierStatistics:
    statistics = engine.cache.tier_statistics()
    assert statistics is not None
    return statistics


@pytest.mark.parametrize(("page_size", "depth"), [(16, 1), pytest.param(4, 0, marks=pytest.mark.e2e)])
def test_a_conversation_continues_on_its_files_after_a_restart(folder: Folder, page_size: int, depth: int) -> None:
    shape = shape_for(folder, page_size, depth)
    engine = folder.open(shape)
    name = engine.service.open("talk")
    turn(engine, name, folder.tokens(shape.context - 100))
    turn(engine, name, folder.tokens(21))
    saved = engine.service.history(name).token_ids.tolist()
    engine.cache.save(lambda: False)

    again = folder.open(shape)
    prompt = [*saved, *folder.tokens(9)]
    heard = turn(again, again.service.open("talk"), prompt)
    alone, _ = run_alone(folder.model, shape, prompt, PARAMS)
    assert _exact(heard.samples) == _exact(alone)
    assert heard.end is not None
    assert heard.end.usage.cached_tokens >= len(saved) - 1
    assert heard.end.usage.cached_source == "disk"
    seconds = told(again).store.seconds_per_byte
    assert seconds is not None
    assert seconds > 0
    again.service.close("talk")
    check_all_free(again.cache)


def test_conversations_that_the_pool_has_no_room_for_take_turns(folder: Folder) -> None:
    """Two in the pool, four in the files; each continues where it was."""
    shape = shape_for(folder)
    engine = folder.open(shape)
    names = [engine.service.open() for _ in range(4)]
    for name in names:
        turn(engine, name, folder.tokens(shape.context - 120))
    for name in names:
        saved = engine.service.history(name).token_ids.tolist()
        new = folder.tokens(5)
        heard = turn(engine, name, new)
        alone, _ = run_alone(folder.model, shape, [*saved, *new], PARAMS)
        assert _exact(heard.samples) == _exact(alone)
        assert heard.end is not None
        assert heard.end.usage.cached_tokens >= len(saved) - 1
    assert told(engine).fetches > 0
    assert told(engine).failed == told(engine).lost == 0


def test_damaged_files_are_computed_again(folder: Folder) -> None:
    shape = shape_for(folder)
    engine = folder.open(shape)
    name = engine.service.open("talk")
    turn(engine, name, folder.tokens(200))
    saved = engine.service.history(name).token_ids.tolist()
    engine.cache.save(lambda: False)
    folder.close()
    for path in sorted(folder.path.glob("*.[01]"))[::3]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    again = folder.open(shape)
    prompt = [*saved, *folder.tokens(4)]
    heard = turn(again, again.service.open("talk"), prompt)
    alone, _ = run_alone(folder.model, shape, prompt, PARAMS)
    assert _exact(heard.samples) == _exact(alone)
    assert told(again).store.corrupt > 0
    assert told(again).failed == 1
