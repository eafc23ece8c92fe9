"""The subcommands by name, each loaded when it is asked for: a server need not wait half a second for what only a conversation
at a terminal needs. A subcommand's module has a typer application, `app`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

plain_app = partial(typer.Typer, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
PLACES = {"chat": "sojourn.app.cli_chat", "serve": "sojourn.app.serve", "models": "sojourn.app.cli_models"}


class LoadedWhenAsked(Mapping[str, object]):
    """From the name of a subcommand to what typer makes of it."""

    def __getitem__(self, name: str) -> object:
        return get_command(import_module(PLACES[name]).app)

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


class Commands(TyperGroup):
    """The group `sojourn`: its help lists the subcommands in the order of their places."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # typer's own
        super().__init__(**attributes)
        self.commands = LoadedWhenAsked()  # type: ignore[assignment]  # nobody adds to it

    def list_commands(self, ctx: object) -> list[str]:
        return list(self.commands)
