"""Records: what they are at run time. That nobody changes one is the type checker's to see."""

from dataclasses import replace

import pytest

from sojourn.core.record import record


@record()
class Point:
    x: int
    y: int = 0


@record(eq=False)
class Thing:
    x: int


def test_a_record_is_its_values_unless_it_is_said_to_be_itself() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    assert Thing(1) != Thing(1)
    assert len({Thing(1), Thing(1)}) == 2


def test_a_record_has_no_room_for_more_and_another_is_made_of_it() -> None:
    point = Point(1, 2)
    with pytest.raises(AttributeError):
        setattr(point, "z", 3)  # noqa: B010
    assert replace(point, x=5) == Point(5, 2)
    assert point == Point(1, 2)
