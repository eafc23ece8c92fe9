"""Wiring: the only place that names the concrete classes of an engine together.

options ─▶ model ─▶ size ─▶ fits? ─▶ back end ─▶ pages ─▶ cache ─▶ scheduler ─▶ loop ─▶ sessions ─▶ thread ─▶ door
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sojourn.api.text.glue import Glue
from sojourn.app.config import EngineOptions, compute_threads, overlaps
from sojourn.app.disk_cache import DiskCache, disk_memory, open_disk_cache, seconds_per_token
from sojourn.app.door import Door
from sojourn.app.draft_side import DraftSide, load_draft_model, make_draft_side
from sojourn.app.memory import WORKSPACE_BYTES, Demand, check_fits
from sojourn.app.requests import EngineRoom
from sojourn.app.sizing import EngineSize, bytes_of_pools, choose_size, draft_kv_bytes, kv_bytes, page_bytes_of
from sojourn.app.speculation import speculation
from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Backend
from sojourn.cache.none import NoneCache
from sojourn.cache.radix import RadixCache
from sojourn.core.clock import Clock
from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.engine.loop import EngineLoop
from sojourn.engine.thread import EngineThread
from sojourn.models.chat_template import ChatTemplate
from sojourn.models.loading import load
from sojourn.models.packing import Weights
from sojourn.models.progress import Progress
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer
from sojourn.pages.holding import HoldingBook
from sojourn.runner.runner import Runner
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.sessions.recorder import Recorder
from sojourn.sessions.service import ServiceConfig, SessionService
from sojourn.sessions.slots import SessionAwareCache


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What an engine takes from outside itself: time, chance, memory and the cache folder. Given, so that tests can."""

    cache_dir: Path
    clock: Clock
    date: Callable[[str], str]  # a strftime format to the present moment
    seed: int
    free_memory: int | None  # bytes; None: unknown, not checked


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """A running engine's parts, for its facade."""

    model: LoadedModel
    size: EngineSize
    threads: int
    backend: Backend
    door: Door[SessionService]
    room: EngineRoom
    draft: DraftSide | None = None
    saves: Callable[[], None] = lambda: None  # once the engine's thread has ended

    def close(self) -> None:
        """Stop the engine and give everything back. May be called twice."""
        self.door.close()
        self.saves()
        close_backends(self.backend, self.draft)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A model on its back end: what an engine is built on."""

    model: LoadedModel
    size: EngineSize
    threads: int
    backend: Backend
    draft: DraftSide | None = None  # the model that guesses for it
    disk: DiskCache | None = None

    def pools(self) -> list[tuple[str, int]]:
        """Their names and pages, null pages included."""
        own = [(pool.name.lower(), total) for pool, total in zip(MODEL_POOLS, self.size.totals, strict=False)]
        return own if self.draft is None else [*own, (Pool.DRAFT.name.lower(), self.draft.num_pages)]

    def kv_bytes(self, options: EngineOptions) -> int:
        """Bytes of all pools."""
        return sum(self.bytes_of_pools(options))

    def bytes_of_pools(self, options: EngineOptions) -> list[int]:
        """In the order of `pools`."""
        own = list(bytes_of_pools(self.model.packed.config, options, self.size.pool_tokens))
        if self.draft is None:
            return own
        return [*own, draft_kv_bytes(self.draft.model.packed.config, options, self.size.pool_tokens)]

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
        close_backends(self.backend, self.draft)


@dataclass(frozen=True, slots=True, eq=False)
class EngineParts:
    """The engine's inside, for its thread; `cache` and `loop` to look at."""

    service: SessionService
    cache: SessionAwareCache
    loop: EngineLoop


def prepare(model_name: str, options: EngineOptions, world: World, progress: Progress) -> Prepared:
    """Load the model, check that everything fits, and give it its memory and threads."""
    options.check()
    weights = None if options.weights is None else Weights(options.weights)
    model = load(model_name, cache_dir=world.cache_dir, weights=weights, progress=progress)
    guesser = load_draft_model(options, model, world.cache_dir, progress)
    size = choose_size(model.info.name, model.packed.config, options)
    demand = _demand(model, guesser, options)
    check_fits(demand, world.free_memory, size.pool_tokens, is_pool=options.pool_tokens is not None)
    threads = compute_threads(options)
    with ExitStack() as opened:  # closed again, if a later part cannot be made
        backend = NativeBackend(
            model.packed,
            page_size=options.page_size,
            num_pages=size.pages_of_both,
            kv_dtype=options.kv_dtype,
            threads=threads,
            seqs_max=options.max_running,
        )
        opened.callback(backend.close)
        draft = None if guesser is None else make_draft_side(guesser, options, size, threads)
        if draft is not None:
            opened.callback(draft.backend.close)
        disk = open_disk_cache(options, model.packed, backend, world.clock)
        opened.pop_all()
    return Prepared(model, size, threads, backend, draft, disk)


def _demand(model: LoadedModel, draft: LoadedModel | None, options: EngineOptions) -> Demand:
    config = model.packed.config
    workspace = WORKSPACE_BYTES + disk_memory(options, page_bytes_of(config, options))
    if draft is None:
        return Demand(model.info.weight_bytes_total, lambda tokens: kv_bytes(config, options, tokens), workspace)
    its = draft.packed.config
    return Demand(
        model.info.weight_bytes_total + draft.info.weight_bytes_total,
        lambda tokens: kv_bytes(config, options, tokens) + draft_kv_bytes(its, options, tokens),
        workspace,
    )


def close_backends(backend: Backend, draft: DraftSide | None) -> None:
    backend.close()
    if draft is not None:
        draft.backend.close()


def assemble(model_name: str, options: EngineOptions, world: World, progress: Progress) -> Assembly:
    """A running engine in this process."""
    prepared = prepare(model_name, options, world, progress)
    model, backend, size = prepared.model, prepared.backend, prepared.size
    with ExitStack() as opened:
        opened.callback(prepared.close)
        parts = build_parts(model, options, size, backend, world.clock, draft=prepared.draft, disk=prepared.disk)
        thread = EngineThread(parts.service, name="sojourn-engine")
        door = Door(thread)
        room = build_room(door, parts.service, model, world)
        opened.pop_all()
    door.open()

    def save() -> None:
        disk = prepared.disk
        if disk is None:
            return
        if disk.store.is_open and thread.fault is None:
            disk.save(parts.cache)
        disk.close()

    return Assembly(model, size, prepared.threads, backend, door, room, prepared.draft, save)


def build_parts(
    model: LoadedModel,
    options: EngineOptions,
    size: EngineSize,
    backend: Backend,
    clock: Clock,
    *,
    draft: DraftSide | None = None,
    disk: DiskCache | None = None,
    idle_timeout_s: float | None = None,
    idle_max_s: float | None = None,
    session_tokens_max: int | None = None,
    recorder: Recorder | None = None,
) -> EngineParts:
    """Everything between a back end and the sessions on it."""
    book = HoldingBook(size.layout, size.totals)
    guessing = speculation(options, model, draft)
    tier = None
    if disk is not None:
        ahead = options.disk_cache_ahead
        tier = disk.tier(size.layout, lambda: seconds_per_token(loop.statistics()), writes_ahead=ahead)
    inner = RadixCache(book, tier) if options.cache == "radix" else NoneCache(book)
    cache = SessionAwareCache(inner, drafts=guessing.drafts)
    scheduler_config = SchedulerConfig(
        context_length=size.context,
        seqs_max=options.max_running,
        step_tokens_max=options.chunk + options.max_running * (1 + guessing.drafts_max),
        chunk_tokens_max=options.chunk,
    )
    scheduler = Scheduler(cache, scheduler_config, clock, guessing.policy)
    check = MemCheck(cache, StrictMemCheck(options.strict_mem_check), clock)
    has_overlap = overlaps(options)
    steps = ThreadPoolExecutor(1, thread_name_prefix="sojourn-steps") if has_overlap else None
    runner = Runner(backend, clock, drafter=guessing.drafter, executor=steps)
    loop = EngineLoop(
        scheduler,
        runner,
        cache,
        clock,
        mem_check=check,
        depth=int(has_overlap),
        await_pages=None if disk is None else disk.await_pages,
    )
    service_config = ServiceConfig(
        vocab_size=model.packed.config.vocab_size,
        context_length=size.context,
        eos_ids=frozenset(model.text.eos_ids),
        idle_timeout_s=idle_timeout_s,
        idle_max_s=idle_max_s,
        session_tokens_max=session_tokens_max,
    )
    ids = itertools.count(1)
    service = SessionService(loop, cache, service_config, clock=clock, new_id=lambda: str(next(ids)), recorder=recorder)
    return EngineParts(service, cache, loop)


def build_room(door: Door[SessionService], service: SessionService, model: LoadedModel, world: World) -> EngineRoom:
    """The text side of the model, and the door to the engine."""
    tokenizer = Tokenizer(model.tokenizer_json, model.text)
    return EngineRoom(
        door,
        service,
        name=model.info.name,
        tokenizer=tokenizer,
        glue=Glue(tokenizer, ChatTemplate.of(model.text, world.date)),
        eos_ids=frozenset(model.text.eos_ids),
        vocab_size=model.packed.config.vocab_size,
        seed=world.seed,
    )
