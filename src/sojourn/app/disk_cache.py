"""The disk tier as a person chooses it: a folder and a cap, off unless asked for. Makes the parts, saves at the end.

It holds keys and values, from which conversations can be told, so a folder that it makes, and all files, are this user's only.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sojourn.app.config import EngineOptions
from sojourn.app.ending import HANG_S, LOCK_WAIT_S, QUEUE_SHARE, SAVE_S
from sojourn.cache.tiers_back import FETCHES_MAX
from sojourn.cache.tiers_fetch import AHEAD_BYTES
from sojourn.cache.tiers_store import StoreTier
from sojourn.core.clock import Clock
from sojourn.core.tier import KvPages
from sojourn.disk.files import file_bytes
from sojourn.disk.store import QUEUE_BYTES, DiskStore
from sojourn.engine.loop import EngineStatistics
from sojourn.models.identity import kv_identity
from sojourn.models.packed import PackedModel
from sojourn.pages.sizing import PoolLayout

LISTED_BYTES = 300  # of memory, for a page file that the store knows
READ_WAIT_S = 0.02  # that an engine with nothing else to do waits for the disk before it looks for new work

logger = logging.getLogger("sojourn.disk")


class Saved(Protocol):
    """A cache."""

    def save(self, is_late: Callable[[], bool]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class DiskCache:
    """A store, and what names the pages in it."""

    store: DiskStore
    kv: KvPages
    identity: bytes
    clock: Clock

    def tier(
        self, layout: PoolLayout, seconds_per_token: Callable[[], float | None], *, writes_ahead: bool
    ) -> StoreTier:
        """Prices reading against what this engine's own prompts take."""
        store, kv, clock = self.store, self.kv, self.clock
        return StoreTier(store, kv, self.identity, layout, clock, seconds_per_token, writes_ahead=writes_ahead)

    def await_pages(self) -> None:
        self.store.wait(READ_WAIT_S)

    def save(self, cache: Saved) -> None:
        """Nothing runs any more: what is kept goes to the disk, as much as the time allows, and the store is closed."""
        began = self.clock()
        cache.save(lambda: self.clock() - began > QUEUE_SHARE * SAVE_S)
        self.store.close(max(0.0, began + SAVE_S - self.clock()), HANG_S)

    def close(self) -> None:
        """What is not written is lost. May be called twice, and after `save`."""
        self.store.close(0.0, HANG_S)


def open_disk_cache(options: EngineOptions, model: PackedModel, kv: KvPages, clock: Clock) -> DiskCache | None:
    """None: none is wanted. A folder that cannot be used is said in the log, and serving goes on."""
    if options.disk_cache is None:
        return None
    path, size = Path(options.disk_cache), options.disk_cache_bytes
    store = DiskStore(path, size, clock, logger.warning, lock_wait_s=LOCK_WAIT_S)
    with ExitStack() as opened:
        opened.callback(store.close, 0.0, HANG_S)
        identity = kv_identity(model) if store.is_open else b""
        opened.pop_all()
    return DiskCache(store, kv, identity, clock)


def disk_memory(options: EngineOptions, page_bytes: tuple[int, ...]) -> int:
    """Bytes that the tier itself may take: what waits to be written, what is read ahead, and its list of pages."""
    if options.disk_cache is None:
        return 0
    listed = options.disk_cache_bytes // file_bytes(sum(page_bytes) // len(page_bytes)) * LISTED_BYTES
    return QUEUE_BYTES + FETCHES_MAX * AHEAD_BYTES + listed


def seconds_per_token(statistics: EngineStatistics) -> float | None:
    """That a token of a prompt takes; None until one was computed."""
    for phase in statistics.by_phase:
        if phase.phase == "prefill" and phase.tokens.total > 0:
            return phase.seconds.total / phase.tokens.total
    return None


def spoken_disk_cache(disk: DiskCache | None) -> str:
    """For the person who started the server."""
    if disk is None:
        return "none"
    statistics = disk.store.statistics()
    if not statistics.is_open:
        return "none: the folder cannot be used"
    pages, size = sum(statistics.num_pages), statistics.num_bytes / 2**20
    return f"{pages:,} pages are back, {size:,.0f} of {statistics.bytes_max / 2**20:,.0f} MiB"
