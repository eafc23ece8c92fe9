"""What keeping sessions costs a turn: `python -m benchmarks.journal`, under a minute. Needs no model.

Groups as the service makes them, on the file system of `--folder`: the end of one turn (its tokens, its note), and at the
level `token` what each step said. Without `--store-sync` and with it take turns, so that what disturbs the disk disturbs both.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sojourn.sessions.history import TurnRecord
from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.store import Added, Aged, Begun, Ended, Said, StoredSession, StoreEvent

TURNS, TOKENS, NOTE = 300, 300, b"n" * 400


def session(name: str) -> StoredSession:
    return StoredSession(name, "", False, None, 0.0, 0, 0, (), np.empty(0, np.int32))


def end_of(name: str, turn: int) -> list[StoreEvent]:
    record = TurnRecord(turn, turn * TOKENS, turn * TOKENS + 40, (turn + 1) * TOKENS, NOTE, "stop")
    return [Begun(name, "", turn), Ended(name, float(turn), record, np.arange(TOKENS, dtype=np.int32))]


def timed(journal: SqliteJournal, group: Sequence[StoreEvent]) -> float:
    began = time.perf_counter()
    journal.commit([*group, Aged(began)])  # as each group has it
    return time.perf_counter() - began


def measure(folder: Path) -> dict[str, list[float]]:
    names = [f"s{number}" for number in range(16)]
    journals = {"as it is": SqliteJournal(folder / "a.db"), "--store-sync": SqliteJournal(folder / "b.db", syncs=True)}
    seconds: dict[str, list[float]] = {}
    for journal in journals.values():
        journal.commit([Added(session(name)) for name in names])
    for turn in range(TURNS):
        for kind, journal in journals.items():
            name = names[turn % 16]
            seconds.setdefault(f"end of a turn, {kind}", []).append(timed(journal, end_of(name, turn)))
            said: list[StoreEvent] = [Said(name, (7,))]
            seconds.setdefault(f"a token of one turn, {kind}", []).append(timed(journal, said))
            every: list[StoreEvent] = [Said(one, (7,)) for one in names]
            seconds.setdefault(f"a token of 16 turns, {kind}", []).append(timed(journal, every))
    for turn in range(TURNS, TURNS + 30):
        for kind, journal in journals.items():
            group = [event for name in names for event in end_of(name, turn)]
            seconds.setdefault(f"the ends of 16 turns at once, {kind}", []).append(timed(journal, group))
    for journal in journals.values():
        journal.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the file system to measure")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        seconds = measure(Path(folder))
    for what, values in sorted(seconds.items()):
        values.sort()
        median, p99 = statistics.median(values), values[int(0.99 * len(values))]
        print(f"{what:44} median {median * 1e3:7.3f} ms   p99 {p99 * 1e3:7.3f} ms   most {values[-1] * 1e3:7.3f} ms")


if __name__ == "__main__":
    main()
