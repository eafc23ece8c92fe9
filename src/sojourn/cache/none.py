"""No sharing: every request computes its own KV and gives it all back. The protocol at its smallest."""

from collections.abc import Callable, Collection, Iterable
from typing import assert_never

from sojourn.cache.grow import grow_kv_cache
from sojourn.cache.protocol import (
    ALONE,
    CacheAudit,
    CacheKey,
    CacheRequest,
    CacheStatistics,
    Kept,
    Outcome,
    PrefixMatch,
    Room,
    Terms,
    Verdict,
)
from sojourn.cache.release import holding_of, trim_overshoot
from sojourn.cache.statistics import count_pages
from sojourn.core.errors import law
from sojourn.core.ids import StepId
from sojourn.core.step import Pool, TableEdit, TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.pages.holding import Holding, HoldingBook


class NoneCache:
    """An InnerCache that owns no page and lends none."""

    def __init__(self, book: HoldingBook) -> None:
        self.book = book
        self.draft_book: HoldingBook | None = None

    def match_prefix(self, key: CacheKey, tokens: TokenArray) -> PrefixMatch:
        return PrefixMatch(0)

    def admit(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        law(request.holding is None, "%s is admitted twice", request.request_id)
        if not self.make_room(self._wanted(length, terms)):
            return False
        holding = self.book.open(request.label, None)
        self.book.grow(holding, length)
        request.holding, request.prefix_len = holding, 0
        return True

    def grow(self, request: CacheRequest, length: int) -> bool:
        return grow_kv_cache(self, holding_of(request), length, 0, self.make_room)

    def commit(self, request: CacheRequest, length: int) -> None:
        self.book.commit(holding_of(request), length)

    def commit_draft(self, request: CacheRequest, length: int) -> None:
        """It keeps no draft model's KV."""

    def take_edits(self, request: CacheRequest) -> tuple[TableEdit, ...]:
        return self.book.take_edits(holding_of(request))

    def cache_unfinished_req(self, request: CacheRequest) -> None:
        pass

    def cache_finished_req(self, request: CacheRequest, outcome: Outcome) -> None:
        holding, request.holding = request.holding, None
        match outcome.verdict:
            case Verdict.FINISHED:
                trim_overshoot(request, outcome.finished_len)
            case Verdict.ABORTED | Verdict.RETRACTED:
                pass
            case other:
                assert_never(other)
        if holding is not None:
            self.drop(holding)

    def capacity(self, length: int, chunk: int) -> str | None:
        return self.book.capacity(length, chunk)

    def launch(self, step: StepId) -> None:
        self.book.launch(step)

    def retire(self, step: StepId) -> None:
        self.book.retire(step)

    def flush(self) -> None:
        pass

    def is_fetching(self, request: CacheRequest, terms: Terms | None = ALONE) -> bool:
        return False

    def fetch(self, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        return False

    def save(self, is_late: Callable[[], bool]) -> None:
        pass

    def write_ahead(self, *, is_busy: bool) -> float | None:
        return None

    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        return None

    def copy_out(self, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        return None

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None:
        return None

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool:
        return False

    def tier_statistics(self) -> TierStatistics | None:
        return None

    def statistics(self) -> tuple[CacheStatistics, ...]:
        return count_pages(self.book, None, (0, 0))

    def facts(self) -> tuple[tuple[str, int], ...]:
        return ()

    def idle_holdings(self) -> Iterable[Holding]:
        return ()

    def idle_drafts(self) -> Iterable[Holding]:
        return ()

    def audit(self) -> CacheAudit:
        return CacheAudit(None, (), 0)

    # -- for decorators
    def admit_within(self, request: CacheRequest, length: int, prefix_max: int, terms: Terms = ALONE) -> bool:
        return self.admit(request, length, terms)

    def reach(self, key: CacheKey, tokens: TokenArray) -> int:
        return 0

    def could_admit(
        self,
        request: CacheRequest,
        length: int,
        prefix_max: int,
        returning: Collection[Holding],
        terms: Terms = ALONE,
    ) -> bool:
        return self.could_obtain(self._wanted(length, terms), returning)

    def covers(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        if request.holding is not None:
            return self.could_obtain(self.book.pages_wanted(request.holding, length), ())
        return self.could_admit(request, length, 0, (), terms)

    def _wanted(self, length: int, terms: Terms) -> tuple[int, ...]:
        return terms.added((self.book.layout.pages_for(length),) * len(self.book.ledgers), self.book.layout)

    def obtainable(self, returning: Collection[Holding]) -> tuple[int, ...]:
        return self.book.pages_own(returning)

    def could_obtain(self, pages: tuple[int, ...], returning: Collection[Holding]) -> bool:
        return self.book.could_have(pages, self.obtainable(returning))

    def make_room(self, pages: tuple[int, ...]) -> bool:
        return self.book.has_free(pages)

    def slide(self, holding: Holding, settled: int) -> None:
        self.book.slide(holding, settled)

    def publish(self, key: CacheKey, holding: Holding, tokens: TokenArray, length: int) -> None:
        pass

    def absorb(
        self, key: CacheKey, holding: Holding, tokens: TokenArray, uses: int = 1, *, is_last: bool = False
    ) -> None:
        self.drop(holding)

    def drop(self, holding: Holding) -> None:
        lease = self.book.close(holding)
        law(lease is None, "a lease nobody lent: %s", lease)
