"""Steps in flight: what each request runs in one, and the work that says so to the runner. Chooses nothing.

A request's launched lengths move on here, as works are made; pages are there already.
"""

from dataclasses import dataclass, field

from sojourn.core.errors import CorruptionError
from sojourn.core.ids import StepId
from sojourn.core.step import BegunSequence, TableEdit, Work
from sojourn.scheduler.request import Request


@dataclass(slots=True, eq=False)
class Launched:
    """One work of a step in flight: which run of which request it belongs to, and that it computes `[start, end)`.

    Where drafts or an earlier step's are open, `start` is the least and `end` the most that it can be.
    """

    request: Request
    run: int
    start: int
    end: int
    drafts_max: int = 0
    is_open: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    step: StepId
    launched: list[Launched] = field(default_factory=list)
    is_decode: bool = True  # no prompt in it

    def launch(
        self, request: Request, tokens: int, edits: tuple[TableEdit, ...], begins: BegunSequence | None = None
    ) -> Work:
        """The request runs `tokens` more, all of them known."""
        seq, cached = request.seq, request.cached
        if seq is None:
            raise CorruptionError(f"{request.request_id} is launched without a place")
        start, end = request.num_launched, request.num_launched + tokens
        request.num_launched = end
        self.launched.append(Launched(request, request.runs, start, end))
        if tokens == 1:
            ids = (cached.tokens.item(start),)
        else:
            ids = tuple(cached.tokens[start:end].tolist())
            self.is_decode = False
        known = None if cached.prefix_max is None else request.known_rows(start, end)
        if end < cached.num_tokens or request.only_computes:
            return Work(seq, start, ids, edits, known=known, begins=begins)
        if not request.shows_history:
            return Work(seq, start, ids, edits, request.sampling, known=known, begins=begins)
        history = cached.tokens[:end]
        return Work(seq, start, ids, edits, request.sampling, 0, history, cached.num_prompt, known, begins=begins)

    def launch_open(self, request: Request, drafts: int, edits: tuple[TableEdit, ...]) -> Work:
        """A decode of which the runner decides where it starts, or how many drafts follow."""
        seq, cached = request.seq, request.cached
        if seq is None:
            raise CorruptionError(f"{request.request_id} is launched without a place")
        is_ahead, start, end = request.is_ahead, request.num_launched, request.end_max(1 + drafts)
        request.num_launched += 1
        request.drafts_in_flight += drafts
        self.launched.append(Launched(request, request.runs, start, end, drafts, is_open=True))
        return Work(
            seq,
            start,
            () if is_ahead else (cached.tokens.item(start),),
            edits,
            request.sampling,
            history=cached.known if request.shows_history else None,
            num_prompt=cached.num_prompt if request.shows_history else 0,
            takes_previous=is_ahead,
            drafts_max=drafts,
            end_max=end,
        )
