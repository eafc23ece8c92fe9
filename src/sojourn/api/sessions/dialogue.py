"""What was said in one session, beside the token ids that the engine keeps: which ids a further turn appends.

    said so far        open message             new
    [ ... answer ] [ user: what was appended | ... and its rest, other messages, the generation prompt ]

An append leaves its last message open: its text is in the history, its end is not, so that more of it may come. Built
from the engine's transcript and the notes in it; changes only in `record`. Pure: knows no engine and no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sojourn.api import wire
from sojourn.api.text.glue import Glue
from sojourn.api.text.stop_strings import TextStream
from sojourn.core.errors import ClientError
from sojourn.models.chat_template import Message
from sojourn.models.tokenizer import Tokenizer


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What the engine keeps with a turn for us. `leaves_open`: an append, whose last message may go on."""

    messages: list[dict[str, str]]
    leaves_open: bool
    stops: list[str]
    skip_special: bool
    fingerprint: bytes
    continues_open: bool = False  # the first message goes on with the one left open


@dataclass(slots=True)
class Dialogue:
    """A session's messages up to a moment: `num_tokens` of history, `notes` of its turns."""

    glue: Glue
    num_tokens: int = 0
    notes: list[Note] = field(default_factory=list)
    before: list[Message] = field(default_factory=list)  # all that came before the last answer
    answer: str | None = None
    sampled_eos: int | None = None
    open: list[Message] = field(default_factory=list)  # since the last answer; the last of them is open

    @property
    def num_turns(self) -> int:
        return len(self.notes)

    @property
    def said(self) -> list[Message]:
        """Everything that is closed."""
        answer: list[Message] = [] if self.answer is None else [{"role": "assistant", "content": self.answer}]
        return [*self.before, *answer]

    # -- what to append

    def turn_ids(self, new: Sequence[Message], *, continues_open: bool) -> list[int]:
        """The ids of a turn that says `new` and is to be answered. No messages: the answer, or the open message, as is."""
        if self.open:
            return self._close_open(new, continues_open)
        if not new:
            return []
        if self.answer is None:
            return self.glue.opening(new)
        return self.glue.following(self.before, new, self.sampled_eos)

    def append_ids(self, new: Sequence[Message], *, continues_open: bool) -> list[int]:
        """The ids of `new` with its last message left open."""
        if self.open and continues_open:
            return self.glue.go_on(_content(new[-1]), continues=True)
        if self.open:
            mark, other = _marks([*self.said, *self.open, *new])
            text = self._render([*self.open[:-1], _with(self.open[-1], mark), *new[:-1], _with(new[-1], other)])
            between = _after(text, mark).partition(other)[0]
            return self.glue.go_on(between + _content(new[-1]), continues=True)
        mark = _marks([*self.said, *new])[0]
        text = self._render([*new[:-1], _with(new[-1], mark)])
        _after(text, mark)
        head = text.partition(mark)[0] + _content(new[-1])
        return (
            self.glue.begin(head) if self.answer is None else self.glue.go_on(head, continues=self.sampled_eos is None)
        )

    def _close_open(self, new: Sequence[Message], continues_open: bool) -> list[int]:
        mark = _marks([*self.said, *self.open, *new])[0]
        following = list(new[1:]) if continues_open else list(new)
        rest = _content(new[0]) if continues_open else ""
        text = self._render([*self.open[:-1], _with(self.open[-1], mark), *following])
        return self.glue.go_on(rest + _after(text, mark), continues=True)

    def _render(self, new: Sequence[Message]) -> str:
        if self.answer is None:
            return self.glue.opening_text(new)
        return self.glue.following_text(self.before, new, self.sampled_eos)

    # -- what was appended

    def record(self, note: Note, num_tokens: int, answer: str, sampled_eos: int | None) -> None:
        """A turn stands: `num_tokens` is the length of the history now."""
        new: list[Message] = [dict(message) for message in note.messages]
        if note.continues_open and self.open and new:
            self.open[-1] = _with(self.open[-1], _content(self.open[-1]) + _content(new.pop(0)))
        self.notes.append(note)
        self.num_tokens = num_tokens
        self.open += new
        if note.leaves_open:
            return
        if self.open or self.answer is None:
            self.before, self.open, self.answer = [*self.said, *self.open], [], answer
        else:
            self.answer += answer
        self.sampled_eos = sampled_eos


def dialogue_of(transcript: wire.Transcript, glue: Glue, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Dialogue:
    """The dialogue that a transcript tells."""
    dialogue = Dialogue(glue)
    for turn in transcript.turns:
        prompt = transcript.token_ids[turn.start : turn.output_start]
        note = note_of(turn.note, prompt, tokenizer)
        output = transcript.token_ids[turn.output_start : turn.end]
        eos = output[-1] if output and output[-1] in eos_ids else None
        dialogue.record(note, turn.end, text_of(output, note, tokenizer), eos)
    dialogue.num_tokens = len(transcript.token_ids)
    return dialogue


def note_of(raw: bytes, prompt: Sequence[int], tokenizer: Tokenizer) -> Note:
    """The note of a turn; for one that left none, its prompt as a user's message."""
    if raw:
        return msgspec.msgpack.decode(raw, type=Note)
    messages = [{"role": "user", "content": tokenizer.decode(prompt)}] if prompt else []
    return Note(messages, False, [], True, b"")


def text_of(output_ids: Sequence[int], note: Note, tokenizer: Tokenizer) -> str:
    """The text that a turn showed for these tokens."""
    return text_and_stop(output_ids, note, tokenizer)[0]


def text_and_stop(output_ids: Sequence[int], note: Note, tokenizer: Tokenizer) -> tuple[str, str | int | None]:
    """And what ended it, if a stop did: the stop string, or else the id of its last token."""
    stream = TextStream(tokenizer, note.stops, skip_special=note.skip_special)
    text = stream.feed(output_ids) + stream.flush()
    if stream.match is not None:
        return text, stream.match.stop
    return text, output_ids[-1] if output_ids else None


def _content(message: Message) -> str:
    return str(message.get("content", ""))


def _with(message: Message, content: str) -> Message:
    return {**message, "content": content}


def _after(text: str, mark: str) -> str:
    if text.count(mark) != 1:
        raise ClientError(
            "this model's chat template cannot leave a message open: send it whole, in a turn", param="text"
        )
    return text.partition(mark)[2]


def _marks(messages: Sequence[Message]) -> tuple[str, str]:
    """Two words that occur in no message."""
    said = "\0".join(_content(message) for message in messages)
    number = 0
    while f"OPEN-{number}-MESSAGE" in said or f"NEXT-{number}-MESSAGE" in said:
        number += 1
    return f"OPEN-{number}-MESSAGE", f"NEXT-{number}-MESSAGE"
