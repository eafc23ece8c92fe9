"""What is kept of sessions, where and for how long: the recorder that the options make.

<data-dir>/<model>-<fingerprint>/sessions.db      one model's; another model's sessions are another file
"""

import re
from pathlib import Path

from sojourn.app.store_options import StoreOptions
from sojourn.core.clock import Clock
from sojourn.models.fingerprint import fingerprint_of
from sojourn.models.store import LoadedModel
from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.recorder import Recorder
from sojourn.sessions.store import Durability, NoStore, StoreError


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
