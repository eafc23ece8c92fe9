"""A conversation with whoever sits at stdin: at a terminal, through pipes, or as JSON lines.

Reads messages, streams answers, reports what each turn cost. Knows the library's `Engine` and `Session`, nothing below.
"""

import contextlib
import json
import sys
from typing import BinaryIO

from rich.console import Console

from sojourn.api.options import TurnKeywords
from sojourn.app.engine import Engine
from sojourn.app.session import Session
from sojourn.app.turn import Turn
from sojourn.app.wrap import WordWrap
from sojourn.core.errors import ClientError, SojournError
from sojourn.engine.thread import EngineStoppedError

with contextlib.suppress(ImportError):  # line editing at the prompt, where Python was built with it
    import readline  # noqa: F401


class Chat:
    """One conversation and how its turns are sampled."""

    def __init__(self, session: Session, options: TurnKeywords) -> None:
        self._session = session
        self._options = options

    def start(self, message: str) -> Turn:
        if not message.strip():
            raise ClientError("the message is empty", param="message")
        return self._session.turn(message, **self._options)


def summary(turn: Turn) -> str:
    """The line after a turn: what was reused, what was new, what came of it, and how fast."""
    usage = turn.usage
    new = usage.prompt_tokens - usage.cached_tokens
    parts = [f"{usage.cached_tokens} cached", f"{new} new", f"{usage.completion_tokens} generated"]
    if usage.ttft_s is not None:
        parts.append(f"first token {usage.ttft_s * 1000:.0f} ms")
    if usage.tokens_per_s is not None:
        parts.append(f"{usage.tokens_per_s:.1f} tok/s")
    parts.append(f"{usage.pages_held} pages held")
    if turn.finish_reason == "abort":
        parts.append("stopped before the first token: the message was not kept")
    elif turn.finish_reason != "stop":
        parts.append({"length": "cut at the length limit", "interrupt": "stopped"}[str(turn.finish_reason)])
    return " · ".join(parts)


def decode_message(raw: bytes, line: int) -> str:
    """A line of stdin as text, without its line end."""
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ClientError(f"line {line} is not valid UTF-8 (byte {error.start + 1})", param="message") from error


def stream(turn: Turn, console: Console) -> None:
    """Print a turn as it comes, on a terminal broken between words. Ctrl-C stops the turn and nothing else."""
    wrap = WordWrap(console.width) if console.is_terminal else None
    try:
        for delta in turn:
            console.print(delta.text if wrap is None else wrap.feed(delta.text), end="")
    except KeyboardInterrupt:
        turn.settle()
    console.print("" if wrap is None else wrap.flush())


def tell_about(engine: Engine, notes: Console) -> None:
    """What a person should know before the first turn, once."""
    if not engine.has_chat_template:
        notes.print(f"{engine.info.name} has no chat template: it continues your text as it is.", style="dim")
    for line in engine.info.narrowed:
        notes.print(line, style="dim")


# -- at a terminal


def chat_at_terminal(engine: Engine, chat: Chat, console: Console) -> None:
    """Until Ctrl-D, or Ctrl-C twice at the prompt: the first may have been meant for an answer that has just ended."""
    console.print(engine.description, style="bold")
    tell_about(engine, console)
    console.print("Ctrl-C stops an answer; Ctrl-D leaves.", style="dim")
    while True:
        try:  # around all of it: a Ctrl-C may come just when a line was taken
            message = _prompt(console)
            if message is None:
                return
            if not message.strip():
                continue
            turn = chat.start(message)
            stream(turn, console)
            console.print(summary(turn), style="dim")
        except KeyboardInterrupt:
            console.print("\nstopped", style="dim")
        except EngineStoppedError:
            raise
        except SojournError as error:
            console.print(str(error), style="red")
            if isinstance(error, ClientError) and error.code == "context_length_exceeded":
                console.print("The conversation has no room left. Leave with Ctrl-D, and start another.", style="dim")


def _prompt(console: Console) -> str | None:
    """The next message; None when the person leaves."""
    is_asked = False
    while True:
        try:
            message = input("\n> ")
            message.encode("utf-8")  # undecodable bytes of the terminal arrive as lone surrogates
        except EOFError:
            console.print()
            return None
        except KeyboardInterrupt:
            console.print()
            if is_asked:
                return None
            is_asked = True
            console.print("Ctrl-C again leaves, and so does Ctrl-D.", style="dim")
        except UnicodeError:
            console.print("that was not valid UTF-8; please type it again", style="red")
        else:
            return message


# -- through pipes


def chat_through_pipe(chat: Chat, source: BinaryIO, answers: Console, notes: Console) -> bool:
    """One message per line of `source`; answers to one console, costs and errors to the other. True: no line failed."""
    fine = True
    for line, raw in enumerate(source, 1):
        try:
            turn = chat.start(decode_message(raw, line))
            stream(turn, answers)
            notes.print(summary(turn))
        except KeyboardInterrupt:
            fine = False
            notes.print(f"sojourn: line {line} was stopped before its turn began")
        except EngineStoppedError:
            raise
        except SojournError as error:
            fine = False
            notes.print(f"sojourn: {error}")
    return fine


def chat_as_json(chat: Chat, source: BinaryIO) -> bool:
    """One message per line of `source`, one JSON object per line on stdout. True: no line was refused."""
    fine = True
    number = 0
    for line, raw in enumerate(source, 1):
        try:
            turn = chat.start(decode_message(raw, line))
            with contextlib.suppress(KeyboardInterrupt):
                turn.wait()
            turn.settle()
            number += 1
            _write(turn_record(number, turn))
        except KeyboardInterrupt:
            fine = False
            _write({"error": "stopped before the turn began", "line": line})
        except ClientError as error:
            fine = False
            _write({"error": str(error), "param": error.param, "line": line})
        except EngineStoppedError:
            raise
        except SojournError as error:
            fine = False
            _write({"error": str(error), "line": line})
    return fine


def turn_record(number: int, turn: Turn) -> dict[str, object]:
    usage = turn.usage
    return {
        "turn": number,
        "text": turn.text,
        "prompt_ids": turn.prompt_ids,
        "output_ids": turn.output_ids,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "finish_reason": turn.finish_reason,
        "ttft_ms": None if usage.ttft_s is None else round(usage.ttft_s * 1000, 3),
        "tokens_per_s": None if usage.tokens_per_s is None else round(usage.tokens_per_s, 3),
        "pages_held": usage.pages_held,
    }


def _write(record: dict[str, object]) -> None:
    """ASCII only, so that it is right whatever the encoding of stdout."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
