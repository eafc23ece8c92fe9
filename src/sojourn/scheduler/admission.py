"""Whom of those who wait to try next, and on what terms: first come first served, but for who has little to compute.

    waiting, oldest first    [ A: refused ] [ B: long ] [ C: short ] [ D ]
                                                          └─ is tried although A waits

A request that can be through its prompt in the step being planned may pass those that pages are short for, however many
do. But the head is not held up for want of pages for more than `HELD_UP_STEPS`: then all behind it wait, those that run
end, and with nothing running it may have the whole pool. Who then is the head has as long again, and the k-th in line k times
as long. A request that is refused yields for a while to what is kept for others, and then no longer. So neither waits for
ever. Knows no pages; the cache says who fits.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sojourn.cache.protocol import Terms
from sojourn.core.ids import StepId
from sojourn.scheduler.queue import WaitingQueue
from sojourn.scheduler.request import Refusal, Request, RequestState

HELD_UP_STEPS = 512  # many turns of few tokens, and about what a prompt of thousands takes beside them
SEEN_MAX = 64  # of those that wait, the oldest: each that is tried costs a match
RETRY_STEPS = 8  # between two tries when nothing has ended
WAITING_FOR = ("no_pages", "batch_full", "fetching", "in_line")  # in line: behind others, or for tokens of a step
PATIENCE_STEPS = 128  # that it yields, from its first refusal on


@dataclass(frozen=True, slots=True)
class Blocked:
    """The head of the line: there is a place for it, and pages are short. For the audit.

    `is_open`: some of the line could be tried in the last step; not so where those that run gave way to each other.
    """

    request: Request
    refusal: Refusal
    is_open: bool


class Admission:
    """Owns the order among those who wait. The scheduler calls `open` once per step and tells what became of each."""

    def __init__(self, waiting: WaitingQueue) -> None:
        self._waiting = waiting
        self._passed: list[Request] = []  # older ones that stay, in the pass going on
        self._round = 0

    def reopen(self) -> None:
        """Something ended or gave way: whoever was refused may fit now."""
        self._round += 1

    def is_due(self, step: StepId) -> bool:
        """Whether anybody would be tried in this step."""
        return any(self._may_try(request, step, place) for place, request in enumerate(self._first()))

    def open(
        self, step: StepId, is_fetching: Callable[[Request, StepId | None], bool] = lambda request, step: False
    ) -> Iterator[Request]:
        """Those to be tried in this step, oldest first. Each is then admitted, refused or left.

        Who is fetching stands beside the line: it wants nothing now, and nobody waits behind it. All are asked, also those
        that would not be tried: no step is named to these.
        """
        self._passed = []
        for request in self._first():
            is_closed = bool(self._passed) and _held_up(self._passed[0], step) >= HELD_UP_STEPS
            is_tried = not is_closed and self._may_try(request, step, len(self._passed))
            asks = is_tried or request.cached.fetch is not None
            if (asks and is_fetching(request, step if is_tried else None)) or is_closed:
                continue
            if is_tried:
                yield request
            if request.state is RequestState.WAITING:
                self._passed.append(request)

    def may_pass(self, request: Request, *, is_short: bool, is_long: bool) -> bool:
        """Whether the one being tried may have its turn although older ones wait. A long one never may: it is put off."""
        if self._passed and is_long:
            request.put_off_in = self._round
        return is_short or not self._passed

    def waits_for_tokens(self, request: Request) -> None:
        """The step has no tokens for it, pages or not: older long prompts have them, which will be through."""
        request.refusal = request.held_up_since = None

    def terms(self, request: Request, length: int, running: Iterable[Request], step: StepId) -> Terms:
        """For an admission up to `length` tokens: leave places for all that is known already, and yield for a while."""
        others, spare = 0, request.cached.num_tokens - length
        for other in running:
            others += 1
            spare += max(0, other.cached.num_tokens - other.num_launched)
        refusal = request.refusal
        is_patient = refusal is None or step - refusal.since < PATIENCE_STEPS
        yields = is_patient and request.num_retractions == 0 and _held_up(request, step) < HELD_UP_STEPS
        return Terms(spare, others, yields and others > 0)

    def refused(self, request: Request, length: int, terms: Terms, step: StepId, *, is_soon: bool) -> None:
        """Pages are short for it. `is_soon`: try again with the next step, whatever ends."""
        since = step if request.refusal is None else request.refusal.since
        retry_at = step if is_soon else StepId(step + RETRY_STEPS)
        request.refusal = Refusal(since, step, retry_at, self._round, length, terms)
        if not self._passed and request.held_up_since is None:
            request.held_up_since = step

    def admitted(self, request: Request) -> None:
        """It leaves the line, maybe past those before it that stay."""
        self._waiting.remove(request)
        request.refusal = request.held_up_since = None
        self.reopen()

    def by_reason(self, *, has_place: bool) -> dict[str, int]:
        """How many wait, by what for: `WAITING_FOR`. Without a place for anybody that is all there is to say."""
        counts = dict.fromkeys(WAITING_FOR, 0)
        for request in self._waiting:
            if not has_place:
                counts["batch_full"] += 1
            elif request.cached.waits_for_tier:
                counts["fetching"] += 1
            else:
                counts["in_line" if request.refusal is None else "no_pages"] += 1
        return counts

    def blocked(self, *, is_open: bool) -> Blocked | None:
        head = self._waiting.head()
        if head is None or head.cached.waits_for_tier:
            return None
        return None if head.refusal is None else Blocked(head, head.refusal, is_open)

    def _first(self) -> list[Request]:
        return self._waiting.first(SEEN_MAX)

    def _may_try(self, request: Request, step: StepId, place: int) -> bool:
        if place > 0 and request.put_off_in == self._round:
            return False
        refusal = request.refusal
        return refusal is None or refusal.round != self._round or step >= refusal.retry_at


def _held_up(request: Request, step: StepId) -> int:
    """Steps that pages have been short for it while it was the first in line."""
    return 0 if request.held_up_since is None else step - request.held_up_since
