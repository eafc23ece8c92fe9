"""The command `sojourn`: its subcommands, and how errors reach the person (one or two lines, never a traceback).

Exit codes: 0; 1 something failed; 2 wrong usage; 130 Ctrl-C outside a conversation.
"""

import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from sojourn.app.commands import Commands, plain_app
from sojourn.app.config import cache_dir
from sojourn.core.errors import ClientError, CorruptionError, SojournError
from sojourn.engine.thread import EngineStoppedError

app = plain_app(
    name="sojourn",
    cls=Commands,
    help="An LLM serving engine whose centre is the streaming session.",
    no_args_is_help=True,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sojourn {metadata.version('sojourn')}")
        raise typer.Exit


@app.callback()
def before_a_subcommand(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An LLM serving engine whose centre is the streaming session."""


def run(arguments: list[str]) -> int:
    """Run the command line and give its exit code; errors are told on stderr."""
    try:
        code = app(arguments, prog_name="sojourn", standalone_mode=False)
    except typer.TyperException as error:  # wrong usage, as typer sees it
        return _fail(error.format_message(), error.exit_code)
    except ClientError as error:
        return _fail(str(error), 2)
    except EngineStoppedError as error:
        return _fail(f"{error}\nsojourn: the report is in {save_report(error.report)}", 1)
    except BrokenPipeError:
        raise
    except (SojournError, OSError, CorruptionError) as error:
        return _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    return code if isinstance(code, int) else 0


def save_report(report: str) -> Path:
    """Keep what the engine had to say when it stopped, to be sent with a bug report."""
    path = cache_dir() / "reports" / time.strftime("%Y-%m-%d-%H%M%S.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report + "\n", encoding="utf-8")
    return path


def _fail(message: str, code: int) -> int:
    is_help = message.startswith("Usage:")  # a command without a subcommand shows its help
    sys.stderr.write(f"{message if is_help else f'sojourn: {message}'}\n")
    return code


def main() -> None:
    """The entry point of the installed command."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone; keep the interpreter from writing to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
