"""`sojourn models`: what the catalogue has, what is on this machine, and what a model is."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sojourn.app.commands import plain_app
from sojourn.app.config import cache_dir
from sojourn.app.terminal import MIB, plain_console, show_progress
from sojourn.models.config import ModelConfig
from sojourn.models.loading import ModelDescription, ModelListing, describe, list_models, pull
from sojourn.models.manifest import ModelInfo

app = plain_app(name="models", help="List, fetch and look at models.", no_args_is_help=True)


@app.command("list")
def list_command() -> None:
    """The catalogue, and every other model that is prepared on this machine."""
    console = plain_console()
    rows: list[tuple[str, ...]] = [("name", "model", "licence", "download", "here")]
    rows += [(m.name, m.title, m.license, mib(m.download_bytes), state(m)) for m in list_models(cache_dir())]
    print_table(console, rows)


@app.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help="Catalogue name, GGUF file, model folder or hub id.")],
) -> None:
    """Fetch a model and prepare it, so that the first conversation starts at once."""
    console = plain_console()
    with show_progress(plain_console(stderr=True)) as progress:
        info = pull(name, cache_dir=cache_dir(), progress=progress)
    console.print(f"{info.name} is ready ({mib(info.weight_bytes_total)} of weights)")
    for line in (*info.narrowed, *info.notes):
        console.print(line)


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Catalogue name, GGUF file, model folder or hub id.")],
) -> None:
    """A model's numbers, its licence and what it takes."""
    with show_progress(plain_console(stderr=True)) as progress:
        description = describe(name, cache_dir=cache_dir(), progress=progress)
    print_table(plain_console(), facts(description), header=False)


def facts(description: ModelDescription) -> list[tuple[str, str]]:
    """Name and value of everything there is to tell."""
    listing, info = description.listing, description.info
    is_in_catalogue = listing.download_bytes is not None
    rows = [
        ("name", listing.name),
        ("model", listing.title),
        ("licence", listing.license if is_in_catalogue or info is None else info.license),
        ("download", mib(listing.download_bytes)),
        ("here", state(listing)),
    ]
    if description.config is not None:
        rows += config_facts(description.config)
    if info is not None:
        rows += info_facts(info)
    return rows


def config_facts(config: ModelConfig) -> list[tuple[str, str]]:
    attention = config.attention
    rows = [
        ("architecture", config.architecture),
        ("layers", str(config.num_layers)),
        ("hidden size", f"{config.hidden_size:,}"),
        ("heads", f"{attention.num_heads} ({attention.num_kv_heads} of keys and values) of {attention.head_dim}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("context", f"{config.context_length:,}"),
    ]
    if attention.sliding_window:
        rows.append(("sliding window", f"{attention.sliding_window:,} in {sum(attention.layer_slides)} layers"))
    return rows


def info_facts(info: ModelInfo) -> list[tuple[str, str]]:
    widths = ", ".join(f"{kind} {mib(size)}" for kind, size in info.weight_bytes.items() if size >= MIB)
    rows = [("parameters", f"{info.parameters:,}"), ("weights", widths)]
    return rows + [("note", line) for line in (*info.narrowed, *info.notes)]


def mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:,.0f} MiB"


def state(listing: ModelListing) -> str:
    if listing.is_packed:
        return f"ready, {mib(listing.cached_bytes)}"
    return f"fetched, {mib(listing.cached_bytes)}" if listing.is_fetched else "no"


def print_table(console: Console, rows: Sequence[tuple[str, ...]], *, header: bool = True) -> None:
    """A table on a terminal; elsewhere one row per line, columns apart by tabs, to be cut and searched."""
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))  # rich would turn the tabs into spaces
        return
    table = Table(show_header=header)
    for name in rows[0]:
        table.add_column(name if header else "")
    for row in rows[1:] if header else rows:
        table.add_row(*row)
    console.print(table)
