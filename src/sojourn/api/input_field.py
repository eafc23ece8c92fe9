"""Whatever the layers below call the input of a request, a refusal names the field that its caller gave it in."""

from collections.abc import Iterator
from contextlib import contextmanager

from sojourn.core.errors import ClientError

INPUT_PARAMS = frozenset(
    {"input_ids", "text", "token_ids", "message", "messages", "prompt"}
)  # of every layer and surface


@contextmanager
def input_named(field: str) -> Iterator[None]:
    """Refusals of the input raised inside are refusals of `field`."""
    try:
        yield
    except ClientError as error:
        if error.param in INPUT_PARAMS:
            error.param = field
        raise
