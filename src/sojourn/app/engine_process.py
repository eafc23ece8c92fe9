"""The engine's process: model, sessions and everything below, behind one socket. Started by the supervisor.

The first line of stdin is the start, as JSON; stdin then stays open for as long as the supervisor lives. Exit codes: 0 told
to stop; 2 options, model or store are at fault, or there is no memory; 70 a broken law, the report on stderr and on disk.
"""

import gc
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec

from sojourn.api import wire
from sojourn.api.desk import EngineDesk, SessionLimits
from sojourn.api.engine_server import EngineServer, Outbox
from sojourn.api.text.stop_strings import StopStrings
from sojourn.app.build import EngineParts, Prepared, World, build_parts, prepare
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.app.disk_cache import spoken_disk_cache
from sojourn.app.ending import KILL_AFTER_S
from sojourn.app.follow import follow_parent
from sojourn.app.keeping import open_recorder, spoken_keeping
from sojourn.app.logs import configure, log_progress
from sojourn.app.memory import available_memory
from sojourn.app.processes import EXIT_BROKEN_LAW, EXIT_OPTIONS, EngineStart
from sojourn.app.ready import tell_ready
from sojourn.app.speculation import guesser, spoken
from sojourn.app.startup import Served, decisions, spoken_overlap, table
from sojourn.app.terminal import plain_console, show_progress
from sojourn.core.errors import ClientError, ModelError
from sojourn.engine.events import Notice
from sojourn.engine.thread import EngineStoppedError, EngineThread
from sojourn.models.fingerprint import fingerprint_of
from sojourn.models.tokenizer import Tokenizer
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.sessions.service import SessionService
from sojourn.sessions.store import StoreError

logger = logging.getLogger("sojourn.engine")


def serve_engine(start: EngineStart) -> int:
    """Load, serve until told to stop, and say how it went."""
    world = World(
        cache_dir=cache_dir(),
        clock=time.monotonic,
        date=time.strftime,
        seed=secrets.randbits(63),
        free_memory=available_memory(),
    )
    follow_parent(KILL_AFTER_S)
    with log_progress() if start.log_format == "json" else show_progress(plain_console(stderr=True)) as progress:
        prepared = prepare(start.model, start.options, world, progress)
    try:
        stopped = _serve_kept(start, prepared, world)
    finally:
        prepared.close()
    if stopped is None:
        return 0
    _leave_report(stopped, start.report_dir)
    return EXIT_BROKEN_LAW


def _serve_kept(start: EngineStart, prepared: Prepared, world: World) -> EngineStoppedError | None:
    """With the sessions that the store has. What is kept in files is saved last: whoever serves next waits for both."""
    recorder = open_recorder(start.keeping, prepared.model, world.clock)
    try:
        parts = build_parts(
            prepared.model,
            start.options,
            prepared.size,
            prepared.backend,
            world.clock,
            draft=prepared.draft,
            disk=prepared.disk,
            idle_timeout_s=start.session_timeout_s,
            idle_max_s=start.keeping.idle_max_s,
            session_tokens_max=start.limits.session_tokens,
            recorder=recorder,
        )
        parts.service.restore()
        stopped = _serve(start, prepared, parts, world)
    finally:
        recorder.close()
    if prepared.disk is not None and stopped is None:
        prepared.disk.save(parts.cache)
    return stopped


def _serve(start: EngineStart, prepared: Prepared, parts: EngineParts, world: World) -> EngineStoppedError | None:
    """None: it was told to stop."""
    tokenizer = Tokenizer(prepared.model.tokenizer_json, prepared.model.text)
    outbox = Outbox()
    desk = EngineDesk(
        parts.service,
        parts.loop,
        parts.cache,
        lambda stops, skip_special: StopStrings(tokenizer, stops, skip_special=skip_special),
        world.clock,
        outbox.put,
        SessionLimits(start.limits.sessions, start.limits.tenant_sessions, start.limits.tenant_waiting),
    )

    def listen(notice: Notice) -> None:
        desk.notice(notice)

    thread: EngineThread[SessionService] = EngineThread(
        parts.service, listener=listen, told=outbox.ring, name="sojourn-engine"
    )
    server = EngineServer(
        start.address,
        thread,
        desk,
        outbox,
        engine_id=secrets.token_hex(8),
        card=model_card(prepared, start.options),
        clock=world.clock,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    kept = spoken_keeping(start.keeping, prepared.model, len(parts.service.session_ids()))
    gc.freeze()  # vocabulary and model stay: a full collection between two steps need not look at them
    thread.start()
    _tell(start, prepared, kept)
    tell_ready(start.ready_fd)
    server.run()
    thread.stop()
    outbox.close()
    return thread.fault  # read after the thread has ended: its last step may have found it


def _tell(start: EngineStart, prepared: Prepared, kept: str) -> None:
    """What was decided: a table on a terminal, a line in a log."""
    console, options, info = plain_console(stderr=True), start.options, prepared.model.info
    if start.log_format == "json" or not console.is_terminal:
        disk = spoken_disk_cache(prepared.disk)
        logger.info("%s, durability %s, disk cache: %s", describe(prepared, options), kept, disk)
        return
    kv = prepared.kv_bytes(options)
    draft = prepared.draft
    draft_pages = 0 if draft is None else draft.num_pages - NUM_RESERVED
    served = Served(info.name, info.source, info.weight_bytes_total, kv, prepared.threads, draft_pages)
    rows = [("durability", kept), ("disk cache", spoken_disk_cache(prepared.disk))]
    console.print(table([*decisions(served, prepared.size, options, start.access), *rows]))


def describe(prepared: Prepared, options: EngineOptions) -> str:
    """What was decided, in a line."""
    size, kv_mib = prepared.size, prepared.kv_bytes(options) / 2**20
    pools = ", ".join(f"{name} {total - 1:,}" for name, total in prepared.pools())
    return (
        f"serving {prepared.model.info.name}: context {size.context:,}, pool {size.pool_tokens:,} tokens "
        f"(pages of {options.page_size}: {pools}), KV {options.kv_dtype} {kv_mib:,.0f} MiB, "
        f"{options.max_running} turns at a time, chunks of {options.chunk}, {prepared.threads} threads, "
        f"{spoken_overlap(options)}, guesses ahead: {spoken(options)}"
    )


def model_card(prepared: Prepared, options: EngineOptions) -> wire.ModelCard:
    model, size = prepared.model, prepared.size
    return wire.ModelCard(
        name=model.info.name,
        source=model.info.source,
        tokenizer_json=model.tokenizer_json,
        text_json=model.text.to_json(),
        vocab_size=model.packed.config.vocab_size,
        context=size.context,
        page_size=options.page_size,
        parameters=model.info.parameters,
        license=model.info.license,
        kv_dtype=options.kv_dtype,
        guesser=guesser(options),
        threads=prepared.threads,
        max_running=options.max_running,
        pool_names=[name for name, _ in prepared.pools()],
        kv_bytes=prepared.bytes_of_pools(options),
        fingerprint=fingerprint_of(model),
    )


def _leave_report(stopped: EngineStoppedError, directory: str | None) -> None:
    logger.critical("%s", stopped.report)
    if directory is None:
        return
    path = Path(directory) / f"sojourn-report-{os.getpid()}.txt"
    try:
        path.write_text(f"{stopped.report}\n")
    except OSError as error:  # the disk may be full by now, and the exit code must still tell of the law
        logger.critical("the report could not be written: %s", error)
    else:
        logger.critical("the report is in %s", path)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the supervisor's to answer
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineStart)
    configure(start.log_format)
    try:
        return serve_engine(start)
    except (ClientError, ModelError, StoreError) as error:
        sys.stderr.write(f"sojourn: {error}\n")
        return EXIT_OPTIONS


if __name__ == "__main__":
    sys.exit(main())
