"""An engine as it is wired, on a tiny model: options reach the parts they are for, and what is dropped is given back."""

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.server import write_tiny_gguf

from sojourn.api.options import TurnOptions
from sojourn.app.build import Assembly, World, assemble, build_parts, prepare
from sojourn.app.config import EngineOptions
from sojourn.app.session import Session
from sojourn.audit.policy import MemCheck
from sojourn.backends.native import NativeBackend
from sojourn.core.errors import ClientError, NotFoundError
from sojourn.core.ids import RequestId
from sojourn.core.step import SamplingParams
from sojourn.disk.store import DiskStore
from sojourn.models.progress import SilentProgress
from sojourn.sessions.service import SessionService, TurnParams

PREFIX = "sojourn.app."
OPTIONS = EngineOptions(context=256, threads=1, max_running=2)
GREEDY = SamplingParams()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    return str(write_tiny_gguf(folder))


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return World(cache_dir=folder / "cache", clock=time.monotonic, date=time.strftime, seed=1, free_memory=None)


@pytest.fixture
def engine(model: str, world: World) -> Iterator[Assembly]:
    assembly = assemble(model, OPTIONS, world, SilentProgress())
    yield assembly
    assembly.door.close()
    assembly.backend.close()


@pytest.mark.parametrize(
    "part",
    [
        "build.make_draft_side",
        "build.open_disk_cache",
        "disk_cache.kv_identity",
        "build.build_parts",
        "build.build_room",
    ],
)
def test_what_was_opened_is_closed_if_a_later_part_cannot_be_made(
    model: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    opened: list[NativeBackend] = []
    closed: list[NativeBackend] = []
    make, close = NativeBackend.__init__, NativeBackend.close

    def watched_make(backend: NativeBackend, *arguments: object, **options: object) -> None:
        make(backend, *arguments, **options)  # type: ignore[arg-type]
        opened.append(backend)

    def watched_close(backend: NativeBackend) -> None:
        close(backend)
        closed.append(backend)

    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(NativeBackend, "__init__", watched_make)
    monkeypatch.setattr(NativeBackend, "close", watched_close)
    monkeypatch.setattr(PREFIX + part, fail)
    options = replace(OPTIONS, speculate=model, disk_cache=str(tmp_path))
    with pytest.raises(MemoryError, match="no room"):
        assemble(model, options, world, SilentProgress())
    assert len(opened) == (1 if part == "build.make_draft_side" else 2)
    assert sorted(map(id, closed)) == sorted(map(id, opened))
    store = DiskStore(tmp_path, 1 << 20, world.clock, pytest.fail)
    assert store.is_open, "nobody has the folder"
    store.close()


@pytest.mark.parametrize("level", [0, 2])
def test_the_level_of_the_memory_check_reaches_it(model: str, world: World, level: int) -> None:
    options = replace(OPTIONS, strict_mem_check=level)
    prepared = prepare(model, options, world, SilentProgress())
    parts = build_parts(prepared.model, options, prepared.size, prepared.backend, world.clock)
    parts.service.submit([1, 2, 3], TurnParams(sampling=GREEDY, max_new_tokens=8))
    while parts.service.has_work:
        parts.service.step()
    check = parts.loop._mem_check
    assert isinstance(check, MemCheck)
    assert check.checks == (parts.loop.statistics().steps if level == 2 else 1)
    prepared.backend.close()


def test_too_large_a_pool_is_refused_by_its_own_name(model: str, world: World) -> None:
    tight = replace(world, free_memory=1 << 20)
    for options, param in ((OPTIONS, "context"), (replace(OPTIONS, pool_tokens=100_000), "pool_tokens")):
        with pytest.raises(ClientError) as caught:
            prepare(model, options, tight, SilentProgress())
        assert caught.value.param == param


def is_open(engine: Assembly, session_id: str) -> bool:
    try:
        engine.room.call(lambda service: service.pages_held(session_id))
    except NotFoundError:
        return False
    return True


def test_a_session_that_nobody_holds_is_closed(engine: Assembly) -> None:
    session = Session(engine.room, None)
    name = session._session_id
    session.turn("Hello", max_tokens=3, temperature=0).wait()
    assert is_open(engine, name)
    del session
    assert not is_open(engine, name)


def test_a_running_turn_holds_its_session(engine: Assembly) -> None:
    session = Session(engine.room, None)
    name, turn = session._session_id, session.turn("Hello", max_tokens=5, temperature=0)
    del session
    assert len(turn.wait().output_ids) == 5
    del turn
    assert not is_open(engine, name)


def test_a_session_that_outlives_its_engine_is_dropped_in_silence(engine: Assembly) -> None:
    session = Session(engine.room, None)
    engine.door.close()
    del session  # pytest makes an error of what a finalizer raises


class NestingDoor:
    """Runs commands at once. On the way of the first, another thread's comes by."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], object]] = []

    def stream(self, command: Callable[[object], RequestId], sink: object) -> "queue.SimpleQueue[Future[RequestId]]":
        while self.meanwhile:
            self.meanwhile.pop()()
        answer: Future[RequestId] = Future()
        try:
            answer.set_result(command(None))
        except ClientError as error:
            answer.set_exception(error)
        answers: queue.SimpleQueue[Future[RequestId]] = queue.SimpleQueue()
        answers.put(answer)
        return answers


def test_turns_that_start_at_the_same_time_have_seeds_of_their_own(
    engine: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def begin(service: SessionService, params: TurnParams) -> RequestId:
        seeds.append(params.sampling.seed)
        return RequestId("r")

    door = NestingDoor()
    monkeypatch.setattr(engine.room, "_door", door)
    door.meanwhile.append(lambda: engine.room.start((1,), TurnOptions(), begin))
    engine.room.start((1,), TurnOptions(), begin)
    assert len(seeds) == len(set(seeds)) == 2


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_overlap_and_guesses_change_how_a_turn_runs_and_nothing_that_it_says(
    model: str, world: World, overlap: bool, speculate: str
) -> None:
    def run(options: EngineOptions) -> tuple[tuple[int, ...], int]:
        engine = assemble(model, options, world, SilentProgress())
        room = engine.room
        turn = Session(room, None).turn(token_ids=[5, 6, 7, 8] * 8, max_tokens=60, temperature=0, ignore_eos=True)
        output, drafted = turn.wait().output_ids, turn.usage.drafted_tokens
        engine.door.close()
        engine.backend.close()
        return output, drafted

    plain, none = run(replace(OPTIONS, overlap=False))
    output, drafted = run(replace(OPTIONS, overlap=overlap, speculate=speculate))
    assert output == plain
    assert none == 0
    assert (drafted > 0) == (speculate == "ngram")
