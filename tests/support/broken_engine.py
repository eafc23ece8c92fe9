"""The engine's process with one broken law: the first census after a step fails. Once, until there is a report of it.

`python -m tests.support.broken_engine` is what the supervisor of `broken_server` starts in place of the engine's own.
"""

import sys
from pathlib import Path

from sojourn.app import engine_process
from sojourn.app.processes import EngineStart
from sojourn.audit.policy import MemCheck
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import StepId

LAW = "page 7 has two owners"
serve = engine_process.serve_engine


def break_a_law(self: MemCheck, step: StepId, *, is_idle: bool) -> None:
    raise CorruptionError(LAW)


def serve_once_broken(start: EngineStart) -> int:
    assert start.report_dir is not None
    if not list(Path(start.report_dir).iterdir()):
        MemCheck.after_step = break_a_law  # type: ignore[method-assign]
    return serve(start)


if __name__ == "__main__":
    engine_process.serve_engine = serve_once_broken
    sys.exit(engine_process.main())
