"""Sojourn: an LLM serving engine whose centre is the streaming session. The public names of the library.

A name is imported when it is first used, so that importing one part of the package never loads all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.app.engine import Engine as Engine
    from sojourn.app.session import Session as Session
    from sojourn.app.turn import Delta as Delta
    from sojourn.app.turn import Turn as Turn
    from sojourn.app.turn import Usage as Usage
    from sojourn.core.errors import CapacityError as CapacityError
    from sojourn.core.errors import ClientError as ClientError
    from sojourn.core.errors import ConflictError as ConflictError
    from sojourn.core.errors import CorruptionError as CorruptionError
    from sojourn.core.errors import ModelError as ModelError
    from sojourn.core.errors import NotFoundError as NotFoundError
    from sojourn.core.errors import SojournError as SojournError
    from sojourn.core.step import Sample as Sample
    from sojourn.engine.thread import EngineStoppedError as EngineStoppedError
else:
    _HOMES = {
        "CapacityError": "sojourn.core.errors",
        "ClientError": "sojourn.core.errors",
        "ConflictError": "sojourn.core.errors",
        "CorruptionError": "sojourn.core.errors",
        "Delta": "sojourn.app.turn",
        "Engine": "sojourn.app.engine",
        "EngineStoppedError": "sojourn.engine.thread",
        "ModelError": "sojourn.core.errors",
        "NotFoundError": "sojourn.core.errors",
        "Sample": "sojourn.core.step",
        "Session": "sojourn.app.session",
        "SojournError": "sojourn.core.errors",
        "Turn": "sojourn.app.turn",
        "Usage": "sojourn.app.turn",
    }
    __all__ = list(_HOMES)

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return vars(import_module(_HOMES[name]))[name]
