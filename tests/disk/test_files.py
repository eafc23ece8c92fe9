"""Page files, and what may stand in their place."""

import os
from pathlib import Path

import pytest

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.files import Found

PAGE = Pool.FULL, b"\1" * 24


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_no_page_and_nobody_waits_for_it(tmp_path: Path, kind: str) -> None:
    place = tmp_path / files.name_of(PAGE)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        assert files.read_into(directory, PAGE, memoryview(bytearray(8))) is Found.CORRUPT
        assert files.scan(tmp_path) == ([], [])
        assert not files.is_there(directory, PAGE, 8)
    finally:
        os.close(directory)
