"""What the supervisor tells the processes it starts: the first line of their stdin, as JSON. Knows no library of theirs.

Exit codes: 0 told to stop; 2 options, keys, model or store at fault (if it was never ready, starting again is of no use);
70 a broken law.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from sojourn.api.settings import FrontSettings
from sojourn.app.config import EngineOptions
from sojourn.app.limits import Limits
from sojourn.app.store_options import StoreOptions

EXIT_OPTIONS = 2
EXIT_BROKEN_LAW = 70
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class EngineStart:
    """`address`: of the socket the engine binds. `ready_fd`: where it says that it is ready."""

    address: str
    model: str
    options: EngineOptions
    session_timeout_s: float | None = None
    report_dir: str | None = None
    limits: Limits = field(default_factory=Limits)
    access: str = ""  # who may ask, for the table of decisions
    log_format: LogFormat = "text"
    keeping: StoreOptions = field(default_factory=StoreOptions)
    ready_fd: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class FrontStart:
    """`fd`: the listening socket, inherited. `ready_fd`: where it says that it is ready."""

    fd: int
    settings: FrontSettings
    api_key_file: str | None = None
    log_format: LogFormat = "text"
    ready_fd: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))
