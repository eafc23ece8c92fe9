"""What `serve` decided, for the person who started it: a table on a terminal. Elsewhere the log has it in a line."""

from dataclasses import dataclass

from rich.table import Table

from sojourn.app.config import EngineOptions, overlaps
from sojourn.app.sizing import EngineSize
from sojourn.app.speculation import spoken
from sojourn.core.step import Pool
from sojourn.pages.sizing import NUM_RESERVED, request_need

TYPICAL = (1024, 4096)  # tokens of a conversation; the whole context is told besides


@dataclass(frozen=True, slots=True)
class Served:
    """The model as it is served."""

    name: str
    source: str
    weight_bytes: int
    kv_bytes: int
    threads: int
    draft_pages: int = 0  # of the model that guesses; 0: there is none


def decisions(served: Served, size: EngineSize, options: EngineOptions, access: str) -> list[tuple[str, str]]:
    """Names and values, in the order of a reader's questions."""
    weights = "as in the file" if options.weights is None else options.weights
    pools = ", ".join(
        f"{total - NUM_RESERVED:,} {pool.name.lower()}" for pool, total in zip(Pool, size.totals, strict=False)
    )
    if served.draft_pages:
        pools += f", {served.draft_pages:,} {Pool.DRAFT.name.lower()}"
    lengths = [*(length for length in TYPICAL if length < size.context), size.context]
    kept = ", ".join(f"{conversations(size, length):,} of {length:,} tokens" for length in lengths)
    kv = (
        f"{options.kv_dtype}, {served.kv_bytes // size.pool_tokens:,} bytes per token, "
        f"{served.kv_bytes / 2**20:,.0f} MiB for {size.pool_tokens:,} tokens"
    )
    return [
        ("model", f"{served.name} ({served.source})"),
        ("weights", f"{weights}, {served.weight_bytes / 2**20:,.0f} MiB"),
        ("context", f"{size.context:,} tokens"),
        ("KV", kv),
        ("pages", f"{pools}, of {options.page_size} tokens"),
        ("sessions kept", kept),
        ("at a time", f"{options.max_running} turns, {options.chunk} tokens of a prompt in a step"),
        ("threads", f"{served.threads}, {spoken_overlap(options)}"),
        ("guesses ahead", spoken(options)),
        ("keys", access),
    ]


def spoken_overlap(options: EngineOptions) -> str:
    return "planning beside the step" if overlaps(options) else "planning between steps"


def conversations(size: EngineSize, length: int) -> int:
    """How many idle sessions of that length keep all their KV. More stay open: theirs is computed again."""
    needs = request_need(size.layout, length, 1)
    return min((total - NUM_RESERVED) // need for total, need in zip(size.totals, needs, strict=True))


def table(rows: list[tuple[str, str]]) -> Table:
    drawn = Table(show_header=False, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*row)
    return drawn
