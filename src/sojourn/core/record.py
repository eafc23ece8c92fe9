"""Frozen data that is made in every step. The type checker sees to it that nobody changes it; at run time nothing does.

A frozen dataclass sets each of its fields through `object.__setattr__`: five times as long as a record, for a work, a batch or
a sample about a microsecond, and more where the step has just driven everything out of the processor's caches. What is made
less often is a frozen dataclass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """As `dataclass(frozen=True, slots=True, eq=eq)`, to all who read its types."""
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)
