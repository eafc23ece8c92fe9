"""The error tree, and `law`.

* SojournError
  + CapacityError      weather: not enough pages or memory now; the scheduler queues, demotes or refuses
  + ClientError        the caller's mistake: a status, the offending parameter, and the bound in the message
  + ModelError         a model file that cannot be used; names the file and the field
* CorruptionError      a law of the engine is broken; nothing inside the engine catches it
"""


class SojournError(Exception):
    """An expected, operating error."""


class CapacityError(SojournError):
    """Not enough room at this moment."""


class ClientError(SojournError):
    """The caller asked for something illegal. Nothing was changed."""

    status = 400
    retry_after_s: int | None = None  # where waiting helps, and for how long

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class NotFoundError(ClientError):
    """The thing the caller named does not exist."""

    status = 404


class ConflictError(ClientError):
    """The thing the caller named is busy."""

    status = 409


class ModelError(SojournError):
    """A model that cannot be loaded. The message names file and field and says what would work."""


class CorruptionError(AssertionError):
    """A law is broken. Continuing would corrupt answers, so the engine reports and stops."""


def law(condition: bool, message: str, *values: object) -> None:
    """Assert a law of the engine: stays on under `python -O`, and builds its message only on failure."""
    if not condition:
        raise CorruptionError(message % values)
