"""`sojourn chat`: options to an engine and a conversation, on whatever stdin and stdout are."""

import sys
from typing import Annotated

import typer

from sojourn.api.options import TEMPERATURE_DEFAULT, TOP_P_DEFAULT, TurnKeywords, TurnOptions
from sojourn.app.chat import Chat, chat_as_json, chat_at_terminal, chat_through_pipe, tell_about
from sojourn.app.cli_options import DraftsMaxOption, OverlapOption, SpeculateOption
from sojourn.app.commands import plain_app
from sojourn.app.config import NO_DRAFTS, WeightsWidth
from sojourn.app.engine import Engine
from sojourn.app.terminal import plain_console, show_progress
from sojourn.backends.protocol import KvDtype

app = plain_app()


@app.command()
def chat(
    model: Annotated[str, typer.Option(help="Catalogue name, GGUF file, model folder or hub id.")] = "smollm2",
    system: Annotated[str | None, typer.Option(help="System message, before the first turn.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = TEMPERATURE_DEFAULT,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that add up to this.")] = TOP_P_DEFAULT,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable; by default a fresh one.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens per answer; by default up to the context.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of the whole conversation; by default up to 8192.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads; by default one per physical core.")] = None,
    weights: Annotated[WeightsWidth | None, typer.Option(help="Width of weights; by default the file's own.")] = None,
    kv_dtype: Annotated[KvDtype, typer.Option(help="Type of cached keys and values.")] = "f16",
    page_size: Annotated[int, typer.Option(help="Tokens per page of the cache, a power of two.")] = 16,
    overlap: OverlapOption = None,
    speculate: SpeculateOption = NO_DRAFTS,
    drafts_max: DraftsMaxOption = 8,
    json: Annotated[
        bool, typer.Option("--json", help="One message per line in, one JSON object per turn out.")
    ] = False,
) -> int:
    """Talk to a model. Ctrl-C stops an answer and keeps the conversation; Ctrl-D leaves."""
    options: TurnKeywords = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    TurnOptions(**options).check(vocab_size=1)  # before a model is fetched for nothing
    answers, notes = plain_console(), plain_console(stderr=True)
    with show_progress(notes) as progress:
        engine = Engine(
            model,
            context=context,
            weights=weights,
            kv_dtype=kv_dtype,
            threads=threads,
            page_size=page_size,
            max_running=1,
            seed=seed,
            overlap=overlap,
            speculate=speculate,
            drafts_max=drafts_max,
            progress=progress,
        )
    with engine, engine.open_session(system=system) as session:
        conversation = Chat(session, options)
        if json:
            tell_about(engine, notes)
            return 0 if chat_as_json(conversation, sys.stdin.buffer) else 1
        if sys.stdin.isatty() and answers.is_terminal:
            chat_at_terminal(engine, conversation, answers)
            return 0
        tell_about(engine, notes)
        return 0 if chat_through_pipe(conversation, sys.stdin.buffer, answers, notes) else 1
