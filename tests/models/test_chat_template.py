"""Templates as Hugging Face renders them, and templates that refuse, fail or reach too far."""

import pytest
from tests.support.text import GEMMA, LLAMA3, MISTRAL

from sojourn.core.errors import ClientError, ModelError
from sojourn.models.chat_template import ChatTemplate, Message
from sojourn.models.store import LoadedModel
from sojourn.models.text_config import PieceStyle, TextConfig

USER: Message = {"role": "user", "content": " hi "}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, lambda form: f"[{form}]")


def test_smollm2_writes_its_default_system_message_once(smollm2: LoadedModel) -> None:
    chat = ChatTemplate.of(smollm2.text, str)
    assert chat is not None
    assert chat.render([{"role": "user", "content": "Hi"}], True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate.of(TextConfig(PieceStyle.BYTE_LEVEL), str) is None


def test_llama3_trims_and_writes_bos() -> None:
    text = template(LLAMA3).render([USER], True)
    assert text == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_has_no_generation_prompt() -> None:
    assert template(MISTRAL).render([USER], True) == "<s>[INST]  hi [/INST]"


def test_refusal_carries_the_templates_own_words() -> None:
    with pytest.raises(ClientError, match="refuses these messages: System role not supported") as caught:
        template(GEMMA).render([{"role": "system", "content": "x"}, USER], True)
    assert caught.value.param == "messages"


def test_blocks_are_trimmed_and_the_last_newline_dropped() -> None:
    assert template("a\n    {% if true %}\nb\n    {% endif %}\nc\n").render([USER], True) == "a\nb\nc"


def test_generation_marks_and_loop_controls_are_understood() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert template(source).render([USER, USER], False) == " hi "


def test_tojson_is_plain_json() -> None:
    source = "{{ messages[0] | tojson }}"
    message: Message = {"role": "user", "content": "<é&'>"}
    assert template(source).render([message], False) == '{"role": "user", "content": "<é&\'>"}'
    assert template("{{ [1] | tojson(indent=2) }}").render([USER], False) == "[\n  1\n]"


def test_time_is_the_callers() -> None:
    assert template("{{ strftime_now('%d %b') }}").render([USER], False) == "[%d %b]"


def test_options_and_absent_tools_reach_the_template() -> None:
    source = "{{ tools is none }} {{ enable_thinking is defined }}"
    assert template(source).render([USER], False) == "True False"
    assert template(source).render([USER], False, {"enable_thinking": False}) == "True True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}", "chat_template: line 1: "),
        ("ok\n{{ messages[ }}", "chat_template: line 2: "),
        ("{{ x | no_such_filter }}", "no_such_filter"),
    ],
)
def test_malformed_template_is_the_models_fault(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        template(source)


def test_the_sandbox_holds() -> None:
    with pytest.raises(ModelError, match=r"chat_template: .*unsafe"):
        template("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([USER], False)
    with pytest.raises(ModelError, match=r"chat_template: .*unsafe"):
        template("{{ messages.append(1) }}").render([USER], False)


def test_content_of_another_kind_is_the_callers_fault() -> None:
    with pytest.raises(ClientError, match="cannot render these messages: TypeError"):
        template("{{ 'x' + messages[0].content }}").render([{"role": "user", "content": None}], False)
    with pytest.raises(
        ClientError, match=r"cannot render these messages: UndefinedError: .*has no attribute 'content'"
    ):
        template("{{ messages[0].content.strip() }}").render([{"role": "user"}], False)
