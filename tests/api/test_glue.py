"""What a turn appends: one system message, one BOS, one end for every message, whatever the template."""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.text import (
    CHATML_WITH_DEFAULT,
    GEMMA,
    LLAMA2,
    LLAMA3,
    MISTRAL,
    THINKING,
    tiny_tokenizer,
    tokenizer_of,
)

from sojourn.api.text.glue import Conversation, Glue
from sojourn.core.errors import ClientError, ModelError
from sojourn.models.chat_template import ChatTemplate, Message
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer

SYSTEM: Message = {"role": "system", "content": "Be brief."}
HI: Message = {"role": "user", "content": "hi"}
MORE: Message = {"role": "user", "content": "more"}

LLAMA3_USER = "<|start_header_id|>user<|end_header_id|>"
LLAMA3_ASSISTANT = "<|start_header_id|>assistant<|end_header_id|>"
CHATML = tiny_tokenizer(("<|im_start|>", "<|im_end|>"))
SENTENCEPIECE = tiny_tokenizer(("<s>", "</s>"), add_bos=True)


@cache
def glue(source: str, bos: str, eos: str, add_bos: bool = True) -> Glue:
    template = ChatTemplate(source, {"bos_token": bos, "eos_token": eos}, str)
    return Glue(tiny_tokenizer((bos, eos), add_bos), template)


def eos_of(bos: str, eos: str, add_bos: bool = True) -> int:
    found = tiny_tokenizer((bos, eos), add_bos).token_to_id(eos)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("source", "bos", "eos", "cut_off"),
    [
        (
            CHATML_WITH_DEFAULT,
            "<|im_start|>",
            "<|im_end|>",
            "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            THINKING,
            "<|im_start|>",
            "<|im_end|>",
            "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            LLAMA3,
            "<|begin_of_text|>",
            "<|eot_id|>",
            f"<|eot_id|>{LLAMA3_USER}\n\nmore<|eot_id|>{LLAMA3_ASSISTANT}\n\n",
        ),
        (
            GEMMA,
            "<bos>",
            "<end_of_turn>",
            "<end_of_turn>\n<start_of_turn>user\nmore<end_of_turn>\n<start_of_turn>model\n",
        ),
        (LLAMA2, "<s>", "</s>", " </s><s>[INST] more [/INST]"),
        (MISTRAL, "<s>", "</s>", "</s>[INST] more[/INST]"),
    ],
)
def test_a_turn_appends_the_rest_of_the_message_and_the_new_ones(source: str, bos: str, eos: str, cut_off: str) -> None:
    chat = glue(source, bos, eos)
    assert chat.following_text([HI], [MORE], None) == cut_off
    assert chat.following_text([HI], [MORE], eos_of(bos, eos)) == cut_off.lstrip().removeprefix(eos)


@pytest.mark.parametrize(
    ("source", "bos", "eos"),
    [(LLAMA3, "<|begin_of_text|>", "<|eot_id|>"), (GEMMA, "<bos>", "<end_of_turn>"), (MISTRAL, "<s>", "</s>")],
)
@pytest.mark.parametrize("add_bos", [True, False])
def test_one_bos_at_the_beginning_and_none_later(source: str, bos: str, eos: str, add_bos: bool) -> None:
    chat = glue(source, bos, eos, add_bos)
    bos_id = tiny_tokenizer((bos, eos), add_bos).config.bos_id
    first, second = chat.opening([HI]), chat.following([HI], [MORE], None)
    assert first[0] == bos_id
    assert bos_id not in first[1:]
    assert bos_id not in second


def test_bos_of_the_tokenizer_where_the_template_writes_none() -> None:
    chat = Glue(SENTENCEPIECE, ChatTemplate("{{ messages[0].content }}", {}, str))
    assert chat.opening([HI]) == SENTENCEPIECE.encode("hi", add_bos=True)


@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_system_message_is_said_once(system: list[Message]) -> None:
    chat = glue(CHATML_WITH_DEFAULT, "<|im_start|>", "<|im_end|>")
    assert chat.opening_text([*system, HI]).count("system") == 1
    assert "system" not in chat.following_text([*system, HI], [MORE], None)


def test_system_message_that_moves_to_the_last_user_message_is_not_said_again() -> None:
    chat = glue(MISTRAL, "<s>", "</s>")
    assert chat.opening_text([SYSTEM, HI]) == "<s>[INST] Be brief.\n\nhi[/INST]"
    assert chat.following_text([SYSTEM, HI], [MORE], None) == "</s>[INST] more[/INST]"


def test_earlier_thinking_stays_in_the_history_and_out_of_the_glue() -> None:
    template = ChatTemplate(THINKING, {}, str)
    chat = Glue(CHATML, template, {"enable_thinking": False})
    conversation = Conversation(chat)
    assert chat.opening_text([HI]).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    conversation.record([HI], "<think>\nhm\n</think>\n\nyes", CHATML.config.eos_ids[0])
    expected = "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert CHATML.decode(conversation.ids([MORE]), skip_special=False) == expected
    conversation.record([MORE], "no", CHATML.config.eos_ids[0])
    assert CHATML.decode(conversation.ids([MORE]), skip_special=False) == expected


def test_an_eos_that_is_not_the_templates_leaves_the_message_open() -> None:
    chat = glue(GEMMA, "<bos>", "<end_of_turn>")
    other = tiny_tokenizer(("<bos>", "<end_of_turn>"), True).config.bos_id
    assert chat.following_text([HI], [MORE], other).startswith("<end_of_turn>\n")


def test_a_word_of_the_placeholder_may_be_said() -> None:
    chat = glue(CHATML_WITH_DEFAULT, "<|im_start|>", "<|im_end|>")
    said: Message = {"role": "user", "content": "ANSWER-0-ENDS ANSWER-1-ENDS"}
    assert chat.following_text([said], [said], None) == (
        "<|im_end|>\n<|im_start|>user\nANSWER-0-ENDS ANSWER-1-ENDS<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_hides_answers_is_refused() -> None:
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\n{% endif %}{% endfor %}"
    with pytest.raises(ModelError, match="writes an assistant's answer 0 times instead of once"):
        glue(source, "<s>", "</s>").following_text([HI], [MORE], None)


def test_the_templates_refusal_of_a_later_turn_changes_nothing() -> None:
    chat = Conversation(glue(GEMMA, "<bos>", "<end_of_turn>"))
    chat.record([HI], "hello", None)
    with pytest.raises(ClientError, match="roles must alternate"):
        chat.ids([MORE, MORE])
    assert [m["content"] for m in chat.messages] == ["hi", "hello"]


def test_no_messages_is_refused() -> None:
    chat = Conversation(glue(CHATML_WITH_DEFAULT, "<|im_start|>", "<|im_end|>"))
    with pytest.raises(ClientError, match="messages is empty"):
        chat.ids([])
    chat.record([HI], "", None)
    with pytest.raises(ClientError, match="messages is empty"):
        chat.ids([])


def test_without_a_template_text_continues_as_it_is() -> None:
    chat = Glue(SENTENCEPIECE, None)
    assert chat.is_plain
    assert chat.opening([HI]) == SENTENCEPIECE.encode("hi", add_bos=True)
    assert chat.following([HI], [MORE], None) == SENTENCEPIECE.encode("more")
    assert not glue(GEMMA, "<bos>", "<end_of_turn>").is_plain


def test_text_after_a_cut_continues_it_and_after_an_eos_begins_anew() -> None:
    tokenizer = tiny_tokenizer(("<s>", "</s>"), add_bos=True, space_prefix=True)
    chat = Glue(tokenizer, None)
    assert chat.following([HI], [MORE], None) == tokenizer.encode("more", continues=True)
    assert chat.following([HI], [MORE], tokenizer.config.eos_ids[0]) == tokenizer.encode(" more", continues=True)


def whole_render(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    template = ChatTemplate.of(tokenizer.config, str)
    assert template is not None
    return tokenizer.encode(template.render(messages, True))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["", "12 34", "\n\n", "<|im_end|>"]
)
answers = texts.map(
    str.lstrip
)  # a model's leading whitespace is kept as sampled, a render may merge it with the prompt's


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(texts, answers, st.booleans()), min_size=1, max_size=5), st.none() | texts)
def test_smollm2_turn_by_turn_equals_the_whole_render(
    smollm2: LoadedModel, turns: list[tuple[str, str, bool]], system: str | None
) -> None:
    tokenizer = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    conversation = Conversation(Glue(tokenizer, ChatTemplate.of(tokenizer.config, str)))
    history: list[int] = []
    for number, (said, answer, ends_by_itself) in enumerate(turns):
        new: list[Message] = [{"role": "user", "content": said}]
        if number == 0 and system is not None:
            new.insert(0, {"role": "system", "content": system})
        history += conversation.ids(new)
        assert history == whole_render(tokenizer, [*conversation.messages, *new])
        history += tokenizer.encode(answer) + ([end] if ends_by_itself else [])
        conversation.record(new, answer, end if ends_by_itself else None)
