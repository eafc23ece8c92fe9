"""A turn on the caller's side: its deltas, its end, and what happens when the caller leaves."""

import gc
from collections.abc import Callable, Iterable

import pytest

from sojourn.app.turn import Ended, Turn, TurnState, tokens_per_second
from sojourn.core.errors import ClientError, CorruptionError, SojournError
from sojourn.core.ids import RequestId
from sojourn.core.step import Sample
from sojourn.engine.events import FinishedEvent, FinishReason, TokensEvent, Usage
from sojourn.engine.thread import EngineStoppedError

REQUEST = RequestId("r")
TIMES = Usage(10, 4, 2, queued_at=1.0, admitted_at=1.1, first_token_at=1.5, finished_at=2.0)


class Letters:
    """Token n is the n-th letter; the last one is kept back until the end."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, token_ids: Iterable[int]) -> str:
        self._held += "".join(chr(ord("a") + token) for token in token_ids)
        out, self._held = self._held[:-1], self._held[-1:]
        return out

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out


class World:
    """A turn and a fake engine that ends it when asked to."""

    def __init__(self, *, keeps_logprobs: bool = False) -> None:
        self.stops = 0
        self.said: tuple[int, ...] = ()
        self.recorded: list[str] = []
        self.state = TurnState((7, 8), Letters(), keeps_logprobs=keeps_logprobs, record=self._record)
        self.state.interrupt = self._interrupt

    def _interrupt(self) -> None:
        self.stops += 1
        self.finish(FinishReason.INTERRUPT, *self.said)

    def _record(self, state: TurnState) -> None:
        self.recorded.append(state.text)

    def say(self, *tokens: int) -> None:
        self.said += tokens
        self.state.take(TokensEvent(REQUEST, tuple(Sample(token, -0.5) for token in tokens)))

    def finish(self, reason: FinishReason = FinishReason.STOP, *outputs: int) -> None:
        self.state.take(Ended(FinishedEvent(REQUEST, reason, outputs, TIMES), 3))


def test_a_turn_streams_and_then_knows_what_it_cost() -> None:
    world = World()
    world.say(0)
    world.say(1)
    turn = Turn(world.state)
    with pytest.raises(ClientError, match="when the turn has ended"):
        _ = turn.usage
    world.finish(FinishReason.STOP, 0, 1)
    assert [(delta.text, delta.token_ids) for delta in turn] == [("", (0,)), ("a", (1,)), ("b", ())]
    assert (turn.text, turn.output_ids, turn.prompt_ids) == ("ab", (0, 1), (7, 8))
    assert turn.finish_reason == "stop"
    usage = turn.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.pages_held) == (10, 4, 2, 3)
    assert usage.ttft_s == 0.5
    assert usage.tokens_per_s == 2.0
    assert world.recorded == ["ab"], "the text is whole when the conversation takes it over"
    assert world.stops == 0


def test_logprobs_are_passed_on_only_when_asked_for() -> None:
    for keeps in (True, False):
        world = World(keeps_logprobs=keeps)
        world.say(0)
        world.finish(FinishReason.STOP, 0)
        first = next(iter(Turn(world.state)))
        assert [sample.logprob for sample in first.logprobs] == ([-0.5] if keeps else [])


def leave_by_break(turn: Turn) -> None:
    for _ in turn:
        break


def leave_by_exception(turn: Turn) -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in turn:
            raise KeyboardInterrupt


def leave_without_iterating(turn: Turn) -> None:
    assert turn.finish_reason is None


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_without_iterating])
def test_leaving_a_turn_stops_it(leave: Callable[[Turn], None]) -> None:
    world = World()
    world.say(0)
    turn = Turn(world.state)
    leave(turn)
    del turn
    gc.collect()
    assert world.stops == 1
    world.state.drain()
    assert world.state.finish_reason is FinishReason.INTERRUPT
    assert len(world.recorded) == 1


def test_a_turn_that_ended_is_not_stopped_afterwards() -> None:
    world = World()
    world.say(0)
    world.finish(FinishReason.STOP, 0)
    turn = Turn(world.state).wait()
    turn.stop()
    turn.settle()
    del turn
    gc.collect()
    assert world.stops == 0


def test_iterating_again_after_the_end_gives_nothing() -> None:
    world = World()
    world.say(0)
    world.finish(FinishReason.STOP, 0)
    turn = Turn(world.state).wait()
    assert list(turn) == []


def test_a_turn_that_the_engine_undoes_raises() -> None:
    world = World()
    world.finish(FinishReason.ABORT)
    with pytest.raises(SojournError, match="aborted"):
        Turn(world.state).wait()


def test_a_turn_that_the_caller_undoes_does_not_raise() -> None:
    world = World()
    world.state.is_stopping = True
    world.finish(FinishReason.ABORT)
    assert Turn(world.state).wait().finish_reason == "abort"


def test_an_engine_that_stops_is_told_and_never_waited_for() -> None:
    world = World()
    world.state.take(EngineStoppedError("the engine has stopped: page 7"))
    turn = Turn(world.state)
    with pytest.raises(EngineStoppedError, match="page 7"):
        turn.wait()
    turn.settle()
    assert turn.finish_reason == "abort"


def test_tokens_sent_and_tokens_kept_must_agree() -> None:
    world = World()
    world.say(0)
    with pytest.raises(CorruptionError, match="differ"):
        world.finish(FinishReason.STOP, 0, 1)


def test_what_an_interrupt_loses_is_only_what_was_to_be_shown() -> None:
    """A KeyboardInterrupt may fall just after something was taken from the queue: no wait may depend on it."""
    world = World()
    turn = Turn(world.state)
    world.say(0, 1)
    world.finish(FinishReason.STOP, 0, 1)
    lost = [world.state._deltas.get() for _ in range(world.state._deltas.qsize())]
    assert len(lost) == 3
    assert turn.wait().text == "ab"
    assert world.recorded == ["ab"]
    world.state.drain()


@pytest.mark.parametrize(
    ("tokens", "first", "finished", "pace"),
    [(0, None, 2.0, None), (1, 1.0, 2.0, None), (3, 1.0, 2.0, 2.0), (3, 1.0, 1.0, None)],
)
def test_the_pace_needs_two_tokens_and_some_time(
    tokens: int, first: float | None, finished: float, pace: float | None
) -> None:
    assert tokens_per_second(tokens, first, finished) == pace
