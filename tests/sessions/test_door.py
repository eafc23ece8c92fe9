"""Token ids from outside."""

import numpy as np
import pytest

from sojourn.core.errors import ClientError
from sojourn.sessions.door import checked_token_ids


def test_good_ids_become_an_array() -> None:
    checked = checked_token_ids("input_ids", [0, 5, 96], 97)
    assert checked.dtype == np.int32
    assert checked.tolist() == [0, 5, 96]
    assert len(checked_token_ids("input_ids", [], 97)) == 0


@pytest.mark.parametrize("bad", [-1, 97, 2**31, 2**70, 1e20, 1.0, "x", None, True, [1], float("nan")])
def test_anything_else_is_refused_with_field_place_and_bound(bad: object) -> None:
    with pytest.raises(ClientError, match=r"input_ids\[2\] .* 0 to 96") as refusal:
        checked_token_ids("input_ids", [1, 2, bad, 3], 97)  # type: ignore[list-item]
    assert refusal.value.param == "input_ids"
