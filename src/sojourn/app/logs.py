"""How the processes of a server log: lines for people, or one JSON object per line with every field by its name.

A record with fields of its own (a turn's numbers) carries them in `fields`; what they mean is its logger's.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sojourn.app.processes import LogFormat
from sojourn.app.terminal import PlainProgress
from sojourn.models.progress import Progress

TEXT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")


class JsonFormatter(logging.Formatter):
    """`time` (UTC), `level`, `logger`, and the record's fields, or its `message` where it has none."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = record.__dict__.get("fields")
        entry |= fields if isinstance(fields, dict) else {"message": record.getMessage()}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(log_format: LogFormat) -> None:
    """Of this process: INFO and above, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TEXT)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@contextmanager
def log_progress() -> Iterator[Progress]:
    """Progress as messages of the log."""
    yield PlainProgress(logging.getLogger("sojourn.load").info)
