"""Draws the figures of docs/ from the code's own tables and from scripts played on it: `python -m docs.figures`.

Writes docs/images/*.svg. A test compares them with what the code gives now.
"""

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

from docs.drawing import FAINT, Picture
from docs.scenes import PAGE_SIZE, Snapshot, life_of_a_turn, life_of_pages, window_law

from sojourn.sessions.turns import TRANSITIONS, SessionState, TurnEvent

IMAGES = Path(__file__).parent / "images"
TIERS = Path(__file__).parents[1] / "benchmarks" / "results" / "tiers.json"  # of the last measured run
COLOURS = {
    "free": "#ffffff",
    "reserved": "#52606d",
    "fenced": "#f7c948",
    "tree": "#7cc4a4",
    "running": "#62a8ea",
    "idle": "#bcd9f5",
    "lent": "#7cc4a4",
    "own": "#62a8ea",
    "null": "#ffffff",
}
NAMES = {"running": "a running turn's", "idle": "an idle session's", "tree": "the tree's", "reserved": "null page"}
PLACES = {  # of the ledger's accounts, to draw them; a move between two that are not here fails
    "free": (20, 60),
    "holding": (240, 60),
    "tree": (460, 60),
    "fenced": (240, 170),
    "reserved": (20, 170),
}
BOX_WIDTH, BOX_HEIGHT = 110, 36


def turn_table() -> str:
    """The table of sessions/turns.py, state by event."""
    picture = Picture("What may happen to a session in each state")
    width, height, left = 100, 34, 110
    picture.write(left, 20, "event: what is asked of the session, or happens to its turn", size=12, ink=FAINT)
    for column, event in enumerate(TurnEvent):
        picture.write(left + column * width + width // 2, 44, event.value, anchor="middle", bold=True)
    for row, state in enumerate(SessionState):
        y = 56 + row * height
        picture.write(left - 12, y + height // 2 + 4, state.value, anchor="end", bold=True)
        for column, event in enumerate(TurnEvent):
            following = TRANSITIONS[state].get(event)
            fill, label = ("#f1f4f7", "refused") if following is None else (COLOURS["idle"], f"→ {following.value}")
            ink = FAINT if following is None else "#1f2933"
            picture.box(left + column * width, y, width, height, fill, label, ink=ink, edge="#cbd2d9")
    return picture.text()


def accounts(moves: Counter[tuple[str, str]]) -> str:
    """The ledger's accounts, and every move between two of them that its journal has."""
    picture = Picture("Accounts of the page ledger and the moves between them")
    picture.write(
        20, 24, "pages moved from account to account, as one ledger recorded them in the script below", ink=FAINT
    )
    fills = {"holding": COLOURS["running"]}
    for name, (x, y) in PLACES.items():
        ink = "#ffffff" if name == "reserved" else "#1f2933"
        picture.box(x, y, BOX_WIDTH, BOX_HEIGHT, fills.get(name, COLOURS.get(name, "")), name, ink=ink)
    for (source, target), count in sorted(moves.items()):
        back = source in ("holding", "tree") and target == "free"
        if (source, target) == ("tree", "free"):  # past the box between them
            x1, x2 = PLACES[source][0] + BOX_WIDTH // 2, PLACES[target][0] + BOX_WIDTH // 2
            for ends in ((x1, 60, x1, 40), (x1, 40, x2, 40)):
                picture.line(*ends)
            picture.line(x2, 40, x2, 60, arrow=True)
            picture.write((x1 + x2) // 2, 54, str(count), anchor="middle", bold=True)
            continue
        x1, y1, x2, y2 = _between(PLACES[source], PLACES[target], 8 if back else -8)
        picture.line(x1, y1, x2, y2, arrow=True)
        picture.write((x1 + x2) // 2 + 6, (y1 + y2) // 2 + (16 if back else -6), str(count), bold=True)
    return picture.text()


def _between(source: tuple[int, int], target: tuple[int, int], shift: int) -> tuple[int, int, int, int]:
    """From the edge of one box to the edge of another, moved aside so that two directions are two lines."""
    (x1, y1), (x2, y2) = source, target
    middle = BOX_HEIGHT // 2
    if y1 == y2:
        start, end = (x1 + BOX_WIDTH, x2) if x1 < x2 else (x1, x2 + BOX_WIDTH)
        return start, y1 + middle + shift, end, y2 + middle + shift
    down = y1 < y2
    start_y, end_y = (y1 + BOX_HEIGHT, y2) if down else (y1, y2 + BOX_HEIGHT)
    return x1 + BOX_WIDTH // 2 + shift, start_y, x2 + BOX_WIDTH // 2 + shift, end_y


def pages(snapshots: list[Snapshot]) -> str:
    """Who owns each page of a small pool, event by event, and the identity beside it."""
    picture = Picture("The owner of every page after every event")
    _legend(picture, ("free", "running", "idle", "tree", "fenced", "reserved"), 20)
    left, top, cell = 400, 76, 20
    number = len(snapshots[0].owners)
    right = left + number * cell + 20
    for page in range(number):
        picture.write(left + page * cell + cell // 2, top - 8, str(page), anchor="middle", size=10, ink=FAINT)
    for column, (name, _) in enumerate(snapshots[0].counts):
        picture.write(right + column * 56 + 28, top - 8, name, anchor="middle", size=11)
    picture.write(right + 6 * 56 + 28, top - 8, "total", anchor="middle", size=11, bold=True)
    for row, snapshot in enumerate(snapshots):
        y = top + row * 26
        picture.write(left - 12, y + 14, snapshot.event, anchor="end")
        for page, kind in enumerate(snapshot.owners):
            picture.box(left + page * cell, y, cell, 20, COLOURS[kind], edge="#9aa5b1")
        for column, (_, count) in enumerate(snapshot.counts):
            ink = "#1f2933" if count else "#cbd2d9"
            picture.write(right + column * 56 + 28, y + 14, str(count), anchor="middle", ink=ink)
            picture.write(right + column * 56 + 56, y + 14, "=" if column == 5 else "+", anchor="middle", ink=FAINT)
        total = sum(count for _, count in snapshot.counts)
        if total != snapshot.total:
            raise AssertionError(f"{snapshot.event}: the terms make {total} of {snapshot.total} pages")
        picture.write(right + 6 * 56 + 28, y + 14, str(total), anchor="middle", bold=True)
    return picture.text()


def turn(snapshots: list[Snapshot]) -> str:
    """One session's holding, event by event."""
    picture = Picture("What one session holds, event by event")
    x = _legend(picture, ("lent", "own"), 20)
    picture.write(x, 32, "red line: settled, black line: committed; numbers are first positions", ink=FAINT)
    for row, snapshot in enumerate(snapshots):
        _strip_row(picture, snapshot, 60 + row * 52, pool=0)
    return picture.text()


def window(snapshots: list[Snapshot]) -> str:
    """The window pool of one session, and where a turn may resume."""
    picture = Picture("The window law: what is live, and where a turn may resume")
    x = _legend(picture, ("lent", "own", "null"), 20)
    picture.write(x, 32, "red line: settled, black line: committed; a dot: a turn may resume here", ink=FAINT)
    for row, snapshot in enumerate(snapshots):
        _strip_row(picture, snapshot, 60 + row * 62, pool=1)
    return picture.text()


LEFT, TOKEN, STRIP = 400, 9, 20  # where strips begin; pixels of a token and of a strip's height


def _strip_row(picture: Picture, snapshot: Snapshot, y: int, pool: int) -> None:
    picture.write(LEFT - 12, y + 14, snapshot.event, anchor="end")
    strip = snapshot.strip
    if strip is None:
        picture.write(LEFT, y + 14, "holds nothing", ink=FAINT)
        return
    for index, kind in enumerate(strip.pools[pool]):
        x = LEFT + index * PAGE_SIZE * TOKEN
        picture.box(x, y, PAGE_SIZE * TOKEN, STRIP, COLOURS[kind])
        if kind != "null":
            picture.write(x + 2, y + 9, str(index * PAGE_SIZE), size=9)
    for length, ink in ((strip.settled, "#ba2525"), (strip.committed, "#1f2933")):
        picture.line(LEFT + length * TOKEN, y - 4, LEFT + length * TOKEN, y + STRIP + 3, ink=ink, width=2)
    if pool:
        for length in strip.legal:
            picture.write(LEFT + length * TOKEN, y + STRIP + 9, "•", anchor="middle", ink="#1a7f4b", size=14)
    below = y + STRIP + (26 if pool else 14)
    picture.write(
        LEFT, below, f"settled {strip.settled} · protected {strip.protected} · committed {strip.committed}"
        f" · allocated {strip.allocated}", size=11, ink=FAINT,
    )  # fmt: skip


def tiers(rows: list[dict[str, float]]) -> str:
    """Time to the first token over the length of the history, both in powers, one line per place of its KV."""
    picture = Picture("Milliseconds to the first token, by where the history's KV is")
    left, top, width, height = 70, 40, 560, 300
    lines = (
        ("compute_ms", "computed again", "#ba2525"),
        ("disk_ms", "from files", "#1a7f4b"),
        ("pool_ms", "in the pool", "#2b6cb0"),
    )
    values = [row[column] for row in rows for column, _, _ in lines]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log2(rows[0]["history"]), math.log2(rows[-1]["history"])

    def place(history: float, milliseconds: float) -> tuple[int, int]:
        x = left + width * (math.log2(history) - first) / (last - first)
        return round(x), round(top + height * (high - math.log10(milliseconds)) / (high - low))

    picture.write(left, 20, "milliseconds from request to first token: a history, and 16 new tokens", ink=FAINT)
    for power in range(low, high + 1):
        _, y = place(rows[0]["history"], 10.0**power)
        picture.line(left, y, left + width, y, ink="#e4e7eb", width=1)
        picture.write(left - 10, y + 4, f"{10**power:,}", anchor="end", ink=FAINT)
    for row in rows:
        x, _ = place(row["history"], 10.0**low)
        picture.write(x, top + height + 20, f"{row['history']:,.0f}", anchor="middle", ink=FAINT)
    for column, label, ink in lines:
        points = [place(row["history"], row[column]) for row in rows]
        for (x1, y1), (x2, y2) in pairwise(points):
            picture.line(x1, y1, x2, y2, ink=ink, width=2)
        picture.write(left + width + 10, points[-1][1] + 4, label, ink=ink, bold=True)
    picture.write(left + width // 2, top + height + 40, "tokens of history", anchor="middle", ink=FAINT)
    return picture.text()


def _legend(picture: Picture, kinds: tuple[str, ...], y: int) -> int:
    """Returns where it ends."""
    x = 20
    names = {"lent": "borrowed from the tree", "own": "own", "null": "let go"}
    for kind in kinds:
        picture.box(x, y, 14, 14, COLOURS[kind], edge="#52606d")
        label = names.get(kind, NAMES.get(kind, kind))
        picture.write(x + 20, y + 12, label)
        x += 40 + 7 * len(label)
    return x


def figures() -> dict[str, str]:
    """File name to SVG."""
    page_stage = life_of_pages()
    return {
        "turn-table.svg": turn_table(),
        "accounts.svg": accounts(page_stage.moves()),
        "pages.svg": pages(page_stage.snapshots),
        "turn.svg": turn(life_of_a_turn().snapshots),
        "window.svg": window(window_law().snapshots),
        "tiers.svg": tiers(json.loads(TIERS.read_text())["rows"]),
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, svg in figures().items():
        (IMAGES / name).write_text(svg)


if __name__ == "__main__":
    main()
