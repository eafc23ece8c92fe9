"""Checks of what clients send, before any object exists: token ids of any shape become an array or a refusal."""

from collections.abc import Sequence

import numpy as np

from sojourn.core.bounds import shown
from sojourn.core.errors import ClientError
from sojourn.core.step import TokenArray


def checked_token_ids(field: str, ids: Sequence[int], vocab_size: int) -> TokenArray:
    """`ids` as int32; a ClientError that names the field, the place and the bound for anything that is no token."""
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray | memoryview):
        raise ClientError(f"{field} must be a list of token ids, got {shown(ids)}", param=field)
    for index, value in enumerate(ids):
        if type(value) is not int or not 0 <= value < vocab_size:
            raise _refusal(field, index, value, vocab_size)
    return np.array(ids, dtype=np.int32)


def _refusal(field: str, index: int, value: object, vocab_size: int) -> ClientError:
    return ClientError(
        f"{field}[{index}] is {shown(value)}: a token id is an integer from 0 to {vocab_size - 1}", param=field
    )
