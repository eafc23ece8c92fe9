"""A second model that guesses, as it is wired: checked, sized, counted, and never heard in what is said."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.fixed_drafts import FixedDrafts
from tests.support.model_files import TOKENS, GgufOptions, tiny_model, write_gguf
from tests.support.server import write_tiny_gguf

from sojourn.app.build import EngineParts, Prepared, World, assemble, build_parts, prepare
from sojourn.app.config import EngineOptions
from sojourn.app.memory import WORKSPACE_BYTES
from sojourn.app.session import Session
from sojourn.core.errors import ClientError
from sojourn.core.step import Pool
from sojourn.engine.events import FinishedEvent
from sojourn.models.progress import SilentProgress
from sojourn.sessions.service import TurnParams

OPTIONS = EngineOptions(context=256, threads=1, max_running=2, chunk=32, strict_mem_check=2, overlap=False)
DRAFTS_MAX = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, str]:
    """By architecture; gemma3 has layers that slide."""
    return {name: str(write_tiny_gguf(folder, architecture=name)) for name in ("llama", "gemma3")}


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return World(cache_dir=folder / "cache", clock=time.monotonic, date=time.strftime, seed=1, free_memory=None)


@contextmanager
def engine(model: str, options: EngineOptions, world: World) -> Iterator[tuple[Prepared, EngineParts]]:
    """One that always asks for as many drafts as there is room for."""
    prepared = prepare(model, options, world, SilentProgress())
    parts = build_parts(prepared.model, options, prepared.size, prepared.backend, world.clock, draft=prepared.draft)
    if options.speculate != "off":
        parts.loop.scheduler._policy = FixedDrafts(DRAFTS_MAX)
    yield prepared, parts
    parts.loop.shut_down()
    prepared.close()


def talk(parts: EngineParts) -> tuple[list[tuple[int, ...]], int, int]:
    """Three turns: what was said, and how much was guessed and stood."""
    service, said, guessed, stood = parts.service, [], 0, 0
    session_id = service.open()
    for turn in range(3):
        new = np.arange(40) * (turn + 3) % 250
        service.start_turn(session_id, new.tolist(), TurnParams(max_new_tokens=24, ignore_eos=True))
        while service.has_work:
            for event in service.step():
                if isinstance(event, FinishedEvent):
                    said.append(event.output_ids)
                    guessed += event.usage.num_drafted
                    stood += event.usage.num_accepted
    return said, guessed, stood


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("target", "draft"), [("llama", "llama"), ("gemma3", "gemma3"), ("llama", "gemma3"), ("gemma3", "llama")]
)
def test_a_model_that_guesses_changes_nothing_that_is_said(
    models: dict[str, str], world: World, target: str, draft: str, overlap: bool
) -> None:
    """The census is taken after every step, of its pool too."""
    with engine(models[target], OPTIONS, world) as (_, parts):
        expected, _, _ = talk(parts)
        assert [pool.pool for pool in parts.cache.statistics()][-1] is not Pool.DRAFT
    with engine(models[target], replace(OPTIONS, speculate=models[draft], overlap=overlap), world) as (_, parts):
        said, guessed, stood = talk(parts)
        assert said == expected
        assert guessed > 30
        assert (stood == guessed) == (target == draft), "one that is the same is always right"
        (session_id,) = parts.service.session_ids()
        own = parts.service.pages_by_pool(session_id)[Pool.DRAFT]
        length = parts.service.summary(session_id).num_tokens
        assert (length - 1 - DRAFTS_MAX) // 16 <= own[0] <= -(-length // 16), "kept, and nothing past the end"
        parts.service.close(session_id)
        parts.cache.flush()
        draft_pool = parts.cache.statistics()[-1]
        assert draft_pool.pool is Pool.DRAFT
        assert draft_pool.free + draft_pool.reserved == draft_pool.total


def test_another_vocabulary_is_refused_with_both_sizes(models: dict[str, str], world: World, folder: Path) -> None:
    tiny = tiny_model("llama")
    more = {name: np.vstack((tiny.weights[name], tiny.weights[name][:1])) for name in ("embed", "head")}
    fields = {"tokenizer.ggml.tokens": [*TOKENS, "<|more|>"], "tokenizer.ggml.token_type": [1] * len(TOKENS) + [3]}
    path = write_gguf(folder / "more.gguf", type(tiny)("llama", {**tiny.weights, **more}), GgufOptions(fields=fields))
    with pytest.raises(ClientError, match=f"has {len(TOKENS) + 1} tokens, not {len(TOKENS)}") as caught:
        prepare(models["llama"], replace(OPTIONS, speculate=str(path)), world, SilentProgress())
    assert caught.value.param == "speculate"


def test_its_memory_is_part_of_what_must_fit(models: dict[str, str], world: World) -> None:
    """What is just enough for the model alone is too little for both."""
    prepared = prepare(models["llama"], OPTIONS, world, SilentProgress())
    enough = WORKSPACE_BYTES + prepared.model.info.weight_bytes_total + prepared.kv_bytes(OPTIONS)
    prepared.close()
    tight = replace(world, free_memory=enough)
    prepare(models["llama"], OPTIONS, tight, SilentProgress()).close()
    options = replace(OPTIONS, speculate=models["gemma3"])
    with pytest.raises(ClientError, match="not enough memory"):
        prepare(models["llama"], options, tight, SilentProgress())
    both = prepare(models["llama"], options, world, SilentProgress())
    assert both.draft is not None
    more = both.draft.model.info.weight_bytes_total + both.kv_bytes(options) - prepared.kv_bytes(OPTIONS)
    both.close()
    prepare(models["llama"], options, replace(world, free_memory=enough + more), SilentProgress()).close()


def test_the_engine_a_person_makes_takes_the_models_name(models: dict[str, str], world: World) -> None:
    said = []
    for speculate in ("off", models["gemma3"]):
        made = assemble(models["llama"], replace(OPTIONS, speculate=speculate), world, SilentProgress())
        turn = Session(made.room, None).turn(token_ids=[5, 6, 7, 8] * 8, max_tokens=40, temperature=0, ignore_eos=True)
        said.append(turn.wait().output_ids)
        made.close()
    assert said[0] == said[1]
