"""Folders of sockets: whose server lives keeps it, and whose was killed does not."""

import subprocess
import sys
from pathlib import Path

from sojourn.app.run_folder import PREFIX, run_folder, sweep

HOLD = """
import sys
from pathlib import Path
from sojourn.app.run_folder import run_folder
with run_folder(Path(sys.argv[1])) as folder:
    (folder / "engine").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def held(base: Path) -> "tuple[subprocess.Popen[str], Path]":
    """By another process, until its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: "subprocess.Popen[str]") -> None:
    process.communicate(timeout=60)


def test_a_folder_is_its_servers_and_gone_with_it(tmp_path: Path) -> None:
    with run_folder(tmp_path) as first, run_folder(tmp_path) as second:
        (first / "engine").touch()
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
        assert first.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_server_left_is_swept_by_the_next_and_what_lives_is_not(tmp_path: Path) -> None:
    living, kept = held(tmp_path)
    dying, left = held(tmp_path)
    dying.kill()
    ended(dying)
    assert left.exists()
    with run_folder(tmp_path) as mine:
        assert {path.name for path in tmp_path.iterdir()} == {kept.name, mine.name}
        assert (kept / "engine").exists()
    ended(living)
    assert list(tmp_path.iterdir()) == []


def test_what_only_has_the_name_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    (tmp_path / f"{PREFIX}file").touch()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"target", f"{PREFIX}link", f"{PREFIX}file"}
