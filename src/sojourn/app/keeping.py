"""What is kept of sessions, where and for how long: the options of `serve`, and the recorder that they make.

<data-dir>/<model>-<fingerprint>/sessions.db      one model's; another model's sessions are another file
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sojourn.core.bounds import check_number, check_range
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError
from sojourn.models.fingerprint import fingerprint_of
from sojourn.models.store import LoadedModel
from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.recorder import Recorder
from sojourn.sessions.store import Durability, NoStore, StoreError

MIB_MAX = 1 << 20  # a tebibyte
DAYS_MAX = 36_500.0
DAY_S = 86_400.0

DurabilityOption = Annotated[
    Durability,
    typer.Option(
        help="What outlives the engine: none; turn: finished turns and all that was acknowledged; token: and what a "
        "turn that was cut off had said."
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Where sessions are kept; by default $SOJOURN_DATA or ~/.local/share/sojourn.")
]
StoreMibOption = Annotated[
    int, typer.Option(help="MiB of histories; beyond, the idle sessions used least recently are closed.")
]
StoreDaysOption = Annotated[
    float, typer.Option(help="Days of a running server after which an unused session is closed.")
]
StoreSyncOption = Annotated[
    bool, typer.Option("--store-sync", help="Sync the disk before a turn's end is told, against loss of power.")
]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`data_dir` is needed unless nothing is kept."""

    durability: Durability = Durability.NONE
    data_dir: str = ""
    mib_max: int = 4096
    days_max: float = 30.0
    syncs: bool = False

    def check(self) -> None:
        check_range("store_mib", self.mib_max, 1, MIB_MAX)
        check_number("store_days", self.days_max, 0, DAYS_MAX, low_open=True)
        if self.durability is not Durability.NONE:
            self._check_data_dir()

    def _check_data_dir(self) -> None:
        """Make it, for this user only: better refused now than with the first turn."""
        try:
            Path(self.data_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ClientError(
                f"data_dir cannot be made: {error}; name another one, or keep nothing with --durability none",
                param="data_dir",
            ) from error

    @property
    def idle_max_s(self) -> float | None:
        return None if self.durability is Durability.NONE else self.days_max * DAY_S


def open_recorder(options: StoreOptions, model: LoadedModel, clock: Clock) -> Recorder:
    """Over the model's own file, which is made if need be and locked. Raises StoreError, and serves nothing, without it."""
    if options.durability is Durability.NONE:
        return Recorder(NoStore(), clock)
    return Recorder(
        SqliteJournal(_place(options, model), syncs=options.syncs),
        clock,
        logs_tokens=options.durability is Durability.TOKEN,
        bytes_max=options.mib_max << 20,
    )


def spoken_keeping(options: StoreOptions, model: LoadedModel, num_back: int) -> str:
    """For the person who started the server."""
    if options.durability is Durability.NONE:
        return "none: sessions end with the engine"
    return f"{options.durability}, {num_back:,} sessions are back from {store_path(options, model)}"


def store_path(options: StoreOptions, model: LoadedModel) -> Path:
    name = re.sub(r"[^A-Za-z0-9._]+", "_", model.info.name)[:60]
    return Path(options.data_dir) / f"{name}-{fingerprint_of(model)[:16]}" / "sessions.db"


def _place(options: StoreOptions, model: LoadedModel) -> Path:
    path = store_path(options, model)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be made: {error}") from error
    return path
