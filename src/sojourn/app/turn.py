"""One turn as its caller sees it: an iterator of deltas that, once it ends, tells what it cost.

Owns what came of one request. Knows no engine: how to stop and what to do at the end are given.

    engine's thread     take(event): text, ids, the end         all that must not be lost happens here
          │ deltas
          ▼
    caller's thread     iterate                                  stop(), an abandoned iterator or a KeyboardInterrupt
                                                                 ask the engine to stop; the turn still ends in order

A KeyboardInterrupt may fall between taking something from a queue and using it. So the caller takes nothing but deltas
to show, and whether the turn has ended is not told by what it takes.
"""

import queue
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sojourn.core.errors import ClientError, SojournError, law
from sojourn.core.step import Sample
from sojourn.engine.events import FinishedEvent, FinishReason, TokensEvent
from sojourn.engine.thread import EngineStoppedError


class TextSource(Protocol):
    """Token ids in, text out; keeps back half a character and what may be the start of a stop string."""

    def feed(self, token_ids: Iterable[int]) -> str: ...

    def flush(self) -> str:
        """What was kept back and stands."""
        ...


@dataclass(frozen=True, slots=True)
class Delta:
    """What came since the last one. `text` may be empty while a character is incomplete.

    `logprobs` has one entry per token when log-probabilities were asked for, natural logarithms.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn cost. `prompt_tokens` counts the whole history and the new tokens; `cached_tokens` of them were not
    computed again. `ttft_s` is from the call to the first token, in seconds; `tokens_per_s` counts from the first token
    on. Both are None where there was no token. `pages_held` is what the conversation keeps in the page pools.
    `drafted_tokens` were guessed ahead, and `accepted_tokens` of them stood.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float | None
    tokens_per_s: float | None
    pages_held: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a turn, and the pages its conversation held when it came."""

    event: FinishedEvent
    pages_held: int


TurnEvent = TokensEvent | Ended | EngineStoppedError

_LOOK_S = 0.05  # seconds between looks at whether a turn has ended: the word of it may be lost to an interrupt


class TurnState:
    """The part of a turn that its conversation keeps: it comes to its end whether or not its caller looks on."""

    def __init__(
        self,
        prompt_ids: tuple[int, ...],
        text_stream: TextSource,
        *,
        keeps_logprobs: bool,
        record: Callable[["TurnState"], None],
    ) -> None:
        self.prompt_ids = prompt_ids
        self.output_ids: list[int] = []
        self.pieces: list[str] = []
        self.finish_reason: FinishReason | None = None
        self.message = ""
        self.usage: Usage | None = None
        self.is_stopping = False
        self._text_stream = text_stream
        self._keeps_logprobs = keeps_logprobs
        self.interrupt: Callable[[], None] = lambda: None  # set once the engine has the request
        self._record = record
        self._deltas: queue.SimpleQueue[Delta | None] = queue.SimpleQueue()  # None: look whether it has ended
        self._failure: EngineStoppedError | None = None

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    # -- on the caller's thread

    def stop(self) -> None:
        """Ask the engine to end the turn; what was generated stands. Its last event is still to come.

        Asking twice is harmless, and needed where an interrupt fell between saying so and asking.
        """
        if not self.has_ended:
            self.is_stopping = True
            self.interrupt()

    def refuse(self) -> None:
        """The engine did not take the request: no event will come."""
        self.finish_reason = FinishReason.ABORT

    def drain(self) -> None:
        """Wait until the turn has ended, however it does."""
        while not self.has_ended:
            with suppress(queue.Empty):
                self._deltas.get(timeout=_LOOK_S)

    def deltas(self) -> Iterator[Delta]:
        """What comes, as it comes, to the end. Raises what stopped the engine."""
        while True:
            has_ended = self.has_ended  # then everything is in the queue already
            try:
                delta = self._deltas.get(block=not has_ended, timeout=_LOOK_S)
            except queue.Empty:
                if has_ended:
                    break
                continue
            if delta is not None:
                yield delta
        if self._failure is not None:
            raise self._failure.anew()

    # -- on the engine's thread

    def take(self, event: TurnEvent) -> None:
        """The next event of the request."""
        if isinstance(event, TokensEvent):
            self._deltas.put(self._take(event.samples))
            return
        if isinstance(event, EngineStoppedError):
            self._failure, self.finish_reason = event, FinishReason.ABORT
        else:
            self._end(event)
        self._deltas.put(None)

    def _take(self, samples: tuple[Sample, ...]) -> Delta:
        ids = tuple(sample.token for sample in samples)
        text = self._text_stream.feed(ids)
        self.output_ids += ids
        self.pieces.append(text)
        return Delta(text, ids, samples if self._keeps_logprobs else ())

    def _end(self, ended: Ended) -> None:
        """Everything is in place before `finish_reason` says that the turn has ended."""
        event, used = ended.event, ended.event.usage
        is_undone = event.reason is FinishReason.ABORT
        law(
            is_undone or tuple(self.output_ids) == event.output_ids,
            "%s: tokens sent and kept differ",
            event.request_id,
        )
        rest = self._text_stream.flush()
        self.pieces.append(rest)
        self.usage = Usage(
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            ttft_s=None if used.first_token_at is None else used.first_token_at - used.queued_at,
            tokens_per_s=tokens_per_second(used.completion_tokens, used.first_token_at, used.finished_at),
            pages_held=ended.pages_held,
            drafted_tokens=used.num_drafted,
            accepted_tokens=used.num_accepted,
        )
        self.message = event.message
        if not is_undone:
            self._record(self)
        if rest:
            self._deltas.put(Delta(rest, ()))
        self.finish_reason = event.reason


def tokens_per_second(tokens: int, first_token_at: float | None, finished_at: float) -> float | None:
    """The pace after the first token; None where there is nothing to measure."""
    if first_token_at is None or tokens < 2 or finished_at <= first_token_at:
        return None
    return (tokens - 1) / (finished_at - first_token_at)


class Turn:
    """A running turn. Iterate it for deltas; afterwards `usage` and `finish_reason` are set.

    Leaving the iteration early, by `break`, an exception or Ctrl-C, stops the turn: what was generated stands and the
    conversation can go on. A turn that is dropped without iterating stops too.
    """

    def __init__(self, state: TurnState) -> None:
        self._state = state
        weakref.finalize(self, state.stop).atexit = False

    def __iter__(self) -> Iterator[Delta]:
        state = self._state
        try:
            yield from state.deltas()
        finally:
            if not state.has_ended:
                state.stop()
                state.drain()
        if state.finish_reason is FinishReason.ABORT and not state.is_stopping:
            raise SojournError(state.message or "the turn was aborted")

    def wait(self) -> "Turn":
        """Run the turn to its end and return it."""
        for _ in self:
            pass
        return self

    def settle(self) -> None:
        """See a turn that was stopped to its end: it has no more deltas to give, and `usage` is set."""
        self._state.stop()
        self._state.drain()

    def stop(self) -> None:
        """Ask the engine to end the turn now. Before the first token the turn is undone (`finish_reason` "abort");
        later, what was generated stands ("interrupt"). Callable from any thread; the iteration then ends by itself."""
        self._state.stop()

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Every token before the first generated one: the whole history and this turn's new tokens."""
        return self._state.prompt_ids

    @property
    def output_ids(self) -> tuple[int, ...]:
        """The tokens generated so far, an end-of-sequence token included; the iteration may not have come so far."""
        return tuple(self._state.output_ids)

    @property
    def text(self) -> str:
        """The text so far, without special tokens and without the stop string."""
        return self._state.text

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "interrupt" or "abort"; None while the turn runs."""
        return None if self._state.finish_reason is None else self._state.finish_reason.value

    @property
    def usage(self) -> Usage:
        """What the turn cost. Raises ClientError while it runs."""
        if self._state.usage is None:
            raise ClientError("usage is known when the turn has ended: iterate it, or call wait()", param="usage")
        return self._state.usage
