"""A conversation as the library shows it: text or token ids in, turns out; its KV stays in the engine between turns.

Owns the messages and the handle of the engine's session. Knows no pages but their number.
"""

import weakref
from collections.abc import Sequence
from typing import Self, Unpack

from sojourn.api.input_field import input_named
from sojourn.api.options import TurnKeywords, TurnOptions
from sojourn.api.text.glue import Conversation
from sojourn.app.requests import EngineRoom
from sojourn.app.turn import Turn, TurnState
from sojourn.core.bounds import check_text, shown
from sojourn.core.errors import ClientError, ConflictError
from sojourn.models.chat_template import Message
from sojourn.sessions.door import checked_token_ids


def check_system(room: EngineRoom, system: str | None) -> None:
    """Raise ClientError for a system message that is no text, or that the model has no place for."""
    if system is None:
        return
    check_text("system", system)
    if room.glue.is_plain:
        raise ClientError(f"{room.name} has no chat template, so it takes no system message", param="system")


def one_of(message: str | None, token_ids: Sequence[int] | str | None) -> str | Sequence[int]:
    """The one that was given. ClientError unless it is exactly one, and the message is text."""
    if message is not None and token_ids is None:
        check_text("message", message)
        return message
    if token_ids is not None and message is None:
        if isinstance(token_ids, str) or not isinstance(token_ids, Sequence):
            raise ClientError(f"token_ids must be a list of token ids, got {shown(token_ids)}", param="token_ids")
        return token_ids
    raise ClientError("give exactly one of message and token_ids", param="message")


def _field_of(message: str | None) -> str:
    """The parameter that the input came in."""
    return "token_ids" if message is None else "message"


def opening(room: EngineRoom, message: str, system: str | None) -> list[Message]:
    """A user's message, after a system message where there is one."""
    check_system(room, system)
    user: Message = {"role": "user", "content": message}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def close_dropped(room: EngineRoom, session_id: str) -> None:
    """For a finalizer: give back what a conversation holds that nobody holds. One that was closed is unknown by now."""
    room.tell(lambda service: service.close(session_id))


class Session:
    """Made by `Engine.open_session`. One turn at a time; not to be used from two threads at once.

    One that is dropped without `close` closes by itself, once its turn is dropped too.
    """

    def __init__(self, room: EngineRoom, system: str | None) -> None:
        check_system(room, system)
        self._room = room
        self._system = system
        self._conversation = Conversation(room.glue)
        self._session_id = room.call(lambda service: service.open())
        self._live: TurnState | None = None
        self._handle: weakref.ref[Turn] | None = None
        self._is_closed = False
        weakref.finalize(self, close_dropped, room, self._session_id).atexit = False

    def turn(
        self,
        message: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[TurnKeywords],
    ) -> Turn:
        """Start a turn and return it running; iterate it for its deltas.

        Give a user's `message`, which the model's chat template wraps, or `token_ids`, which are appended as they are.
        The options and their bounds are in `TurnOptions`.

        Raises ClientError, which names the parameter and its bound, and changes nothing: for an option out of bounds, for
        a turn that does not fit the context (both lengths are in the message), ConflictError while another turn runs.
        """
        self._check_is_free()
        checked = TurnOptions.of(options, vocab_size=self._room.vocab_size)
        given = one_of(message, token_ids)
        new = self._new_messages(given)
        ids = self._conversation.ids(new) if isinstance(given, str) else list(given)
        prompt_ids = (*self.history, *ids)

        # What is given away must not hold this object: it is closed when its holders have dropped it.
        session_id, conversation, eos_ids = self._session_id, self._conversation, self._room.eos_ids
        kept: list[Session] = []  # whoever holds a running turn holds its conversation

        def record(state: TurnState) -> None:
            last = state.output_ids[-1] if state.output_ids else None
            conversation.record(new, state.text, last if last in eos_ids else None)
            kept.clear()

        with input_named(_field_of(message)):
            state = self._room.start(
                prompt_ids,
                checked,
                lambda service, params: service.start_turn(session_id, ids, params),
                session_id=session_id,
                hold=self._hold,
                record=record,
            )
        turn = Turn(state)
        kept.append(self)
        weakref.finalize(turn, kept.clear).atexit = False
        self._handle = weakref.ref(turn)
        return turn

    def _hold(self, state: TurnState) -> None:
        self._live, self._handle = state, None

    def _check_is_free(self) -> None:
        """A turn that was stopped, or that nobody holds any more, is seen to its end first; one that runs is in the way."""
        live = self._live
        if live is None or live.has_ended:
            return
        is_held = self._handle is not None and self._handle() is not None
        if is_held and not live.is_stopping:
            raise ConflictError("a turn is running: iterate it to its end, or stop it", param="message")
        live.stop()
        live.drain()

    def _new_messages(self, given: str | Sequence[int]) -> list[Message]:
        """What the turn adds to the conversation as messages: a system message only before the first turn."""
        system = None if self._conversation.messages else self._system
        if isinstance(given, str):
            return opening(self._room, given, system)
        if system is not None:
            raise ClientError("a conversation with a system message begins with text", param="token_ids")
        ids = checked_token_ids("token_ids", given, self._room.vocab_size)
        return [{"role": "user", "content": self._room.tokenizer.decode(ids.tolist())}]

    @property
    def history(self) -> tuple[int, ...]:
        """Token ids of all finished turns, prompts and outputs; a turn that runs is not part of it yet."""
        view = self._room.call(lambda service: service.history(self._session_id))
        return tuple(view.token_ids.tolist())

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said in the finished turns: `role` and `content`."""
        return tuple(self._conversation.messages)

    @property
    def pages_held(self) -> int:
        """Pages of the KV cache that this conversation keeps, its own and borrowed ones."""
        return self._room.call(lambda service: service.pages_held(self._session_id))

    def close(self) -> None:
        """Give back what the conversation holds; a running turn is stopped first. May be called twice."""
        if self._is_closed or self._room.is_stopped:
            return
        if self._live is not None and not self._live.has_ended:
            self._live.stop()
            self._live.drain()
        self._is_closed = True
        self._room.call(lambda service: service.close(self._session_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def start_alone(
    room: EngineRoom,
    message: str | None,
    token_ids: Sequence[int] | None,
    system: str | None,
    options: TurnKeywords,
) -> Turn:
    """A turn without a conversation: nothing of it is kept but what the cache shares."""
    checked = TurnOptions.of(options, vocab_size=room.vocab_size)
    given = one_of(message, token_ids)
    if isinstance(given, str):
        ids = Conversation(room.glue).ids(opening(room, given, system))
    elif system is not None:
        raise ClientError("token_ids are the whole prompt: they take no system message", param="system")
    else:
        ids = checked_token_ids("token_ids", given, room.vocab_size).tolist()
    with input_named(_field_of(message)):
        return Turn(room.start(tuple(ids), checked, lambda service, params: service.submit(ids, params)))
