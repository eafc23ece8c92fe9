"""What a person says of keeping sessions: the options of `serve`, and their bounds. Knows no store: `keeping.py` opens one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sojourn.core.bounds import check_number, check_range
from sojourn.core.errors import ClientError
from sojourn.sessions.store import Durability

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
