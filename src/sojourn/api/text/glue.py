"""Glue between turns: the text that a turn appends to a history of token ids which is never rendered again.

    history   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n | Hello!<|im_end|>  |
    rendered  <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n | ANSWER<|im_end|>\\n<|im_start|>user\\nMo ...
                                                                                         |-- appended ------------->

The whole conversation is rendered with a placeholder for the last answer, and what follows the placeholder is appended:
all of it after an answer that was cut off, and without the end-of-message token when the model sampled that itself.
So a default system message stays where it was, and it does not matter what a template does to earlier answers (strip
them, drop their thinking): those are in the history as they were sampled.

Pure: knows templates, text and ids; no KV, no request.
"""

from collections.abc import Mapping, Sequence

from sojourn.core.errors import ClientError, ModelError
from sojourn.models.chat_template import ChatTemplate, Message
from sojourn.models.tokenizer import Tokenizer


class Glue:
    """What the first turn and each further turn append. Without a template a conversation is plain text, as it is."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        variables: Mapping[str, object] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._variables = variables

    @property
    def is_plain(self) -> bool:
        """The model has no template: it continues text. Worth telling a reader once."""
        return self._template is None

    def opening_text(self, messages: Sequence[Message]) -> str:
        """The text of the first turn, up to where the answer begins. BOS is in it only if the template writes it."""
        _check(messages)
        if self._template is None:
            return _plain_text(messages)
        return self._template.render(messages, True, self._variables)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the first turn, with one BOS if the model has any: the template's or the tokenizer's."""
        return self.begin(self.opening_text(messages))

    def begin(self, text: str) -> list[int]:
        """The ids of a text that begins a history, with one BOS if the model has any."""
        ids = self._tokenizer.encode(text)
        bos_id = self._tokenizer.config.bos_id
        if self._tokenizer.config.add_bos and bos_id is not None and ids[:1] != [bos_id]:
            return [bos_id, *ids]
        return ids

    def following_text(self, before: Sequence[Message], new: Sequence[Message], sampled_eos: int | None) -> str:
        """The text that `new` appends after the answer to `before`.

        `before` is everything up to that answer, without it. `sampled_eos` is the EOS id the answer ended with, None
        when it was cut off (length, stop string, interruption). An EOS that is not the template's own end of message
        leaves the message open, and the template's end is appended after it.
        """
        _check(new)
        if self._template is None:
            return _plain_text(new)
        text = self._after_answer(before, new)
        if sampled_eos is None:
            return text
        sampled = self._tokenizer.id_to_piece(sampled_eos).decode("utf-8", errors="replace")
        end = text.lstrip()  # Llama 2 writes a space before it
        return end.removeprefix(sampled) if end.startswith(sampled) else text

    def following(self, before: Sequence[Message], new: Sequence[Message], sampled_eos: int | None) -> list[int]:
        """The ids that `new` appends to the history, see `following_text`."""
        return self.go_on(self.following_text(before, new, sampled_eos), continues=sampled_eos is None)

    def go_on(self, text: str, *, continues: bool) -> list[int]:
        """The ids of a text that is appended to a history. `continues`: what is before it is text, not a special token."""
        return self._tokenizer.encode(text, continues=continues)

    def _after_answer(self, before: Sequence[Message], new: Sequence[Message]) -> str:
        """What follows the last answer in the render of everything.

        Some templates write the system message into the last user message (Mistral), so that each render would bring it
        again. Seen by the render of `before` not being the beginning of the whole; then the system message, which the
        history already holds, is left out.
        """
        whole, after = self._split_at_answer(before, new)
        if whole.startswith(self._render(before, False)):
            return after
        spoken = [message for message in before if message.get("role") != "system"]
        if not spoken or len(spoken) == len(before):
            return after
        return self._split_at_answer(spoken, new)[1]

    def _split_at_answer(self, before: Sequence[Message], new: Sequence[Message]) -> tuple[str, str]:
        """The render with a placeholder as the answer, and what follows the placeholder."""
        answer = _placeholder([*before, *new])
        whole = self._render([*before, {"role": "assistant", "content": answer}, *new], True)
        if whole.count(answer) != 1:
            raise ModelError(
                f"chat_template: writes an assistant's answer {whole.count(answer)} times instead of once, so a turn "
                "cannot be appended to a history; give a template that writes every answer"
            )
        return whole, whole.partition(answer)[2]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        if self._template is None:
            raise ModelError("chat_template: this model has none")
        return self._template.render(messages, add_generation_prompt, self._variables)


class Conversation:
    """The messages of one conversation, beside the ids that the engine keeps. Changes only in `record`."""

    def __init__(self, glue: Glue) -> None:
        self._glue = glue
        self._before: list[Message] = []
        self._answer: str | None = None
        self._sampled_eos: int | None = None

    @property
    def messages(self) -> list[Message]:
        """Everything said so far, the last answer included."""
        answer: list[Message] = [] if self._answer is None else [{"role": "assistant", "content": self._answer}]
        return [*self._before, *answer]

    def ids(self, new: Sequence[Message]) -> list[int]:
        """The ids to append for `new`. Changes nothing: a turn that is refused has not been said."""
        if self._answer is None:
            return self._glue.opening(new)
        return self._glue.following(self._before, new, self._sampled_eos)

    def record(self, new: Sequence[Message], answer: str, sampled_eos: int | None) -> None:
        """`new` was appended and answered; `sampled_eos` is the EOS id in the history, None after a cut."""
        self._before = [*self.messages, *new]
        self._answer = answer
        self._sampled_eos = sampled_eos


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ClientError("messages is empty: a turn needs at least one", param="messages")


def _plain_text(messages: Sequence[Message]) -> str:
    return "\n".join(str(message.get("content", "")) for message in messages)


def _placeholder(messages: Sequence[Message]) -> str:
    """A word that occurs in no message."""
    said = "\0".join(str(value) for message in messages for value in message.values())
    number = 0
    while f"ANSWER-{number}-ENDS" in said:
        number += 1
    return f"ANSWER-{number}-ENDS"
