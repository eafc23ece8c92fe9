"""A folder for a test, whose stores are closed after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "kv")
    yield bench
    for store in bench.stores:
        store.close()
