"""The disk tier as it is wired: from the options of an engine to the next engine on the same folder."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.tiny import gemma, llama, random_model
from tests.support.server import write_tiny_gguf

from sojourn.app.build import Assembly, World, assemble
from sojourn.app.config import EngineOptions
from sojourn.app.disk_cache import LISTED_BYTES, disk_memory, seconds_per_token, spoken_disk_cache
from sojourn.app.memory import WORKSPACE_BYTES
from sojourn.app.session import start_alone
from sojourn.app.turn import Turn
from sojourn.cache.tiers_back import FETCHES_MAX
from sojourn.cache.tiers_fetch import AHEAD_BYTES
from sojourn.core.errors import ClientError, CorruptionError
from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import StepPlan, Work
from sojourn.disk.files import HEADER_BYTES, TEMPORARY
from sojourn.disk.store import QUEUE_BYTES, DiskStore
from sojourn.engine.loop import EngineStatistics
from sojourn.engine.meter import StepMeter
from sojourn.engine.thread import EngineStoppedError
from sojourn.models.identity import kv_identity
from sojourn.models.packed import MatrixKind
from sojourn.models.progress import SilentProgress
from sojourn.sessions.slots import SessionAwareCache

OPTIONS = EngineOptions(context=256, threads=1, max_running=2, strict_mem_check=2)
PROMPT = [5, 6, 7, 8, 9] * 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    return str(write_tiny_gguf(folder))


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return World(cache_dir=folder / "cache", clock=time.monotonic, date=time.strftime, seed=1, free_memory=None)


def ask(engine: Assembly) -> Turn:
    return start_alone(engine.room, None, PROMPT, None, {"max_tokens": 12, "temperature": 0.0}).wait()


@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_engine_on_a_folder_reads_what_the_last_one_kept(
    model: str, world: World, tmp_path: Path, overlap: bool
) -> None:
    options = replace(OPTIONS, disk_cache=str(tmp_path / "kv"), overlap=overlap)
    first = assemble(model, options, world, SilentProgress())
    said = ask(first)
    assert said.usage.cached_tokens == 0
    first.close()
    second = assemble(model, options, world, SilentProgress())
    again = ask(second)
    assert again.output_ids == said.output_ids
    assert again.usage.cached_tokens == (len(PROMPT) - 1) // 16 * 16
    second.close()
    second.close()
    other = assemble(model, replace(options, page_size=4), world, SilentProgress())
    assert ask(other).usage.cached_tokens == 0, "pages of another size are others"
    other.close()
    assert not list((tmp_path / "kv").glob(f"{TEMPORARY}*"))


def test_an_engine_serves_without_a_folder_that_it_cannot_use(
    model: str, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kv"
    path.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        engine = assemble(model, replace(OPTIONS, disk_cache=str(path)), world, SilentProgress())
        assert len(ask(engine).output_ids) > 0
        engine.close()
    assert [record.name for record in caplog.records] == ["sojourn.disk"]
    assert "serving goes on without it" in caplog.text


def test_an_engine_that_failed_gives_its_folder_back(
    model: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cache: SessionAwareCache, step: StepId) -> None:
        raise CorruptionError("page 7")

    engine = assemble(model, replace(OPTIONS, disk_cache=str(tmp_path / "kv")), world, SilentProgress())
    monkeypatch.setattr(SessionAwareCache, "launch", fail)
    with pytest.raises(EngineStoppedError):
        ask(engine)
    engine.close()
    store = DiskStore(tmp_path / "kv", 1 << 20, world.clock, pytest.fail)
    assert store.is_open, "nobody has it"
    assert store.statistics().num_pages == (0, 0), "what a broken engine has is not kept"
    store.close()


def test_what_the_tier_itself_takes_is_counted_before_anything_is_allocated(
    model: str, world: World, tmp_path: Path
) -> None:
    options = replace(OPTIONS, disk_cache=str(tmp_path / "kv"), disk_cache_bytes=1 << 20)
    pages = (1000, 3000)
    least = QUEUE_BYTES + FETCHES_MAX * AHEAD_BYTES
    assert disk_memory(OPTIONS, pages) == 0
    assert disk_memory(options, pages) == least + (1 << 20) // (2000 + HEADER_BYTES) * LISTED_BYTES
    tight = replace(world, free_memory=WORKSPACE_BYTES + (64 << 20))
    assemble(model, OPTIONS, tight, SilentProgress()).close()
    with pytest.raises(ClientError) as caught:
        assemble(model, options, tight, SilentProgress())
    assert caught.value.code == "memory"
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (EngineOptions(disk_cache="x", cache="none"), "disk_cache"),
        (EngineOptions(disk_cache_bytes=1000), "disk_cache_bytes"),
    ],
)
def test_what_cannot_be_is_refused(options: EngineOptions, param: str) -> None:
    with pytest.raises(ClientError) as caught:
        options.check()
    assert caught.value.param == param


def test_a_token_costs_what_prompts_took() -> None:
    meter = StepMeter()
    assert seconds_per_token(EngineStatistics(0, 0, meter.statistics())) is None
    meter.count(StepPlan(StepId(1), (Work(SeqId(0), 0, (1, 2, 3, 4)),)), 4, 0.5)
    meter.count(StepPlan(StepId(2), (Work(SeqId(0), 4, (5,)),)), 1, 9.0)
    assert seconds_per_token(EngineStatistics(2, 0, meter.statistics())) == pytest.approx(0.125)


def test_nothing_is_said_of_a_tier_that_is_not_there() -> None:
    assert spoken_disk_cache(None) == "none"


def test_every_weight_and_the_configuration_are_in_a_models_identity() -> None:
    model = random_model(llama(), MatrixKind.F32)
    same = random_model(llama(), MatrixKind.F32)
    assert kv_identity(model) == kv_identity(same)
    assert kv_identity(replace(model, config=replace(model.config, name="another name"))) == kv_identity(model)
    last = max(same.matrices)
    same.matrices[last].data.reshape(-1).view("u1")[-1] ^= 1
    others = [
        same,
        random_model(llama(), MatrixKind.F32, seed=1),
        random_model(llama(), MatrixKind.Q8),
        random_model(gemma(), MatrixKind.F32),
        replace(model, config=replace(model.config, rms_norm_eps=1e-6)),
    ]
    assert len({kv_identity(one) for one in [model, *others]}) == 6
