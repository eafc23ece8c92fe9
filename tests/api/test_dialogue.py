"""What a turn appends: open messages, continued answers, and a dialogue read back from a transcript."""

import msgspec
import pytest
from tests.support.text import CHATML_WITH_DEFAULT, LLAMA2, MISTRAL, tiny_tokenizer

from sojourn.api import wire
from sojourn.api.sessions.dialogue import Dialogue, Note, dialogue_of
from sojourn.api.text.glue import Glue
from sojourn.core.errors import ClientError
from sojourn.models.chat_template import ChatTemplate, Message
from sojourn.models.tokenizer import Tokenizer

SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>")
NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
TEMPLATES = {"chatml": CHATML_WITH_DEFAULT, "llama2": LLAMA2, "mistral": MISTRAL, "plain": None}


def tokenizer() -> Tokenizer:
    return tiny_tokenizer(SPECIALS)


def glue(template: str) -> Glue:
    source = TEMPLATES[template]
    return Glue(tokenizer(), None if source is None else ChatTemplate(source, NAMES, lambda form: ""))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def note(messages: list[Message], *, leaves_open: bool = False, continues_open: bool = False) -> Note:
    said = [{name: str(value) for name, value in message.items()} for message in messages]
    return Note(said, leaves_open, [], True, b"f", continues_open)


def said(ids: list[int]) -> str:
    return tokenizer().decode(ids, skip_special=False)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("has_history", [False, True])
def test_a_message_in_parts_gives_the_text_of_the_whole(template: str, has_history: bool) -> None:
    whole, parts = Dialogue(glue(template)), Dialogue(glue(template))
    if has_history:
        for dialogue in (whole, parts):
            dialogue.record(note([user("Hi")]), 9, "Hello", None)
    expected = said(whole.turn_ids([user("What is it like?")], continues_open=False))
    ids: list[int] = []
    for index, part in enumerate(("What is", " it ", "like?")):
        new = [user(part)]
        is_last = part == "like?"
        step = parts.turn_ids if is_last else parts.append_ids
        ids += step(new, continues_open=index > 0)
        parts.record(note(new, leaves_open=not is_last, continues_open=index > 0), 20, "Fine.", None)
    assert said(ids) == expected
    assert parts.said[-2:] == [user("What is it like?"), {"role": "assistant", "content": "Fine."}]


def test_other_messages_may_follow_an_open_one() -> None:
    dialogue = Dialogue(glue("chatml"))
    opening = [{"role": "system", "content": "Be brief."}, user("One")]
    first = said(dialogue.append_ids(opening, continues_open=False))
    dialogue.record(note(opening, leaves_open=True), 10, "", None)
    second = said(dialogue.append_ids([user("Two")], continues_open=False))
    dialogue.record(note([user("Two")], leaves_open=True), 20, "", None)
    third = said(dialogue.turn_ids([], continues_open=False))
    together = Dialogue(glue("chatml"))
    assert first + second + third == said(together.turn_ids([*opening, user("Two")], continues_open=False))


def test_a_turn_without_messages_goes_on_with_the_answer() -> None:
    dialogue = Dialogue(glue("chatml"))
    dialogue.record(note([user("Hi")]), 9, "Hel", None)
    assert dialogue.turn_ids([], continues_open=False) == []
    dialogue.record(note([]), 12, "lo", None)
    assert dialogue.said == [user("Hi"), {"role": "assistant", "content": "Hello"}]


def test_a_template_that_hides_a_message_cannot_leave_it_open() -> None:
    hiding = Glue(tokenizer(), ChatTemplate("hidden", {}, lambda form: ""))
    with pytest.raises(ClientError, match="leave a message open"):
        Dialogue(hiding).append_ids([user("Hi")], continues_open=False)


def test_a_transcript_tells_the_dialogue() -> None:
    words, eos = tokenizer(), tokenizer().token_to_id("<|im_end|>")
    assert eos is not None
    parts = [words.encode("Hi"), [*words.encode("Hello"), eos], words.encode("raw"), words.encode("ok")]
    ends = [sum(map(len, parts[: index + 1])) for index in range(4)]
    turns = [
        wire.TurnOfTranscript(0, ends[0], ends[1], "stop", msgspec.msgpack.encode(note([user("Hi")]))),
        wire.TurnOfTranscript(ends[1], ends[2], ends[3], "length", b""),
    ]
    dialogue = dialogue_of(
        wire.Transcript("idle", [token for part in parts for token in part], turns),
        glue("chatml"),
        words,
        frozenset({eos}),
    )
    roles = [(message["role"], message["content"]) for message in dialogue.said]
    assert roles == [("user", "Hi"), ("assistant", "Hello"), ("user", "raw"), ("assistant", "ok")]
    assert (dialogue.num_turns, dialogue.num_tokens, dialogue.sampled_eos) == (2, ends[3], None)
