"""Checks of numbers and choices at a door: the error names the parameter, its bound and what was given."""

from sojourn.core.errors import ClientError

SEED_MAX = 2**64 - 1

_SHOWN_MAX = 80  # characters of what was given


def shown(value: object) -> str:
    """What was given, for an error message: short, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write whole numbers of some thousands of digits
        return "a number of too many digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ClientError(f"{name} must be true or false, got {shown(value)}", param=name)


def check_range(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    """Raise ClientError unless `value` is a whole number in `[low, high]` (or None, where that is allowed)."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ClientError(f"{name} must be a whole number from {low:,} to {high:,}, got {shown(value)}", param=name)


def check_choice(name: str, value: object, choices: tuple[str, ...], *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str) or value not in choices:
        raise ClientError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}", param=name)


def check_number(
    name: str, value: object, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> None:
    """Raise ClientError unless `value` is a finite number between the bounds; an open bound is itself excluded."""
    if isinstance(value, int | float) and not isinstance(value, bool):  # what is not finite is within no bounds
        above = value > low if low_open else value >= low
        below = value < high if high_open else value <= high
        if above and below:
            return
    start = f"above {low:g}" if low_open else f"from {low:g}"
    end = f"below {high:g}" if high_open else f"to {high:g}"
    raise ClientError(f"{name} must be a number {start} {end}, got {shown(value)}", param=name)


def check_text(name: str, value: object, low: int = 1, high: int | None = None) -> None:
    """Raise ClientError unless `value` is text of `low` to `high` characters without lone surrogates."""
    if not isinstance(value, str):
        raise ClientError(f"{name} must be text, got {shown(value)}", param=name)
    if len(value) < low or (high is not None and len(value) > high):
        bounds = f"at least {low:,}" if high is None else f"{low:,} to {high:,}"
        raise ClientError(f"{name} must have {bounds} characters, got {shown(value)}", param=name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        text = f"{name} is not valid Unicode: a lone surrogate at character {error.start}"
        raise ClientError(text, param=name) from error
