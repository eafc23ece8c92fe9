"""Chat templates: messages to text, in a sandbox, with the names and filters that Hugging Face gives them.

Owns the meaning of a template; knows no token ids and no conversation (see `api/text/glue.py`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Never

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sojourn.core.errors import ClientError, ModelError
from sojourn.models.text_config import TextConfig

Message = Mapping[str, object]  # at least "role" and "content"


class GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant said, for training. Here: its content."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled template. Raises ModelError when it cannot be compiled.

    `strftime_now` formats the present for templates that write the date; give one that stands still for the length of a
    conversation.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], strftime_now: Callable[[str], str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"chat_template: line {error.lineno}: {error.message}") from error

    @classmethod
    def of(cls, config: TextConfig, strftime_now: Callable[[str], str]) -> "ChatTemplate | None":
        """The model's template; None when it has none."""
        if config.chat_template is None:
            return None
        return cls(config.chat_template, dict(config.special_tokens), strftime_now)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text of the messages. `variables` are the template's own options, such as enable_thinking.

        Raises ClientError with the template's own message when it refuses them, ModelError when it reaches for what the
        sandbox forbids.
        """
        names: dict[str, object] = {"tools": None, "documents": None, **self._special_tokens, **(variables or {})}
        names |= {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(names)
        except SecurityError as error:
            raise ModelError(f"chat_template: {error}") from error
        except Refusal as error:
            raise ClientError(f"the chat template refuses these messages: {error}", param="messages") from error
        except Exception as error:  # a template may fail in any way that Python can
            text = f"the chat template cannot render these messages: {type(error).__name__}: {error}"
            raise ClientError(text, param="messages") from error


class Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


def _raise_exception(message: str) -> Never:
    raise Refusal(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face: plain JSON. Jinja's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
