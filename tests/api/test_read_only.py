"""Folders on a mount that is read-only: the server serves, and says once of each what it goes without."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server import COMMAND, serving, write_tiny_gguf

pytestmark = pytest.mark.http_scenario
MOUNT = """
for folder in 1 2; do
  mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
  shift
done
exec "$@"
"""  # in a namespace of its own, so the mounts end with the last process in it


def on_read_only(*folders: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    return ("unshare", "--mount", "sh", "-c", MOUNT, "sh", *map(str, folders), *command)


def skip_unless_it_can_be_made(cache: Path, disk: Path) -> None:
    command = on_read_only(cache, disk, command=(sys.executable, "-c", f"open({str(cache / 'file')!r}, 'w')"))
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if "Read-only file system" not in tried.stderr:
        pytest.skip(f"this user may mount nothing: {tried.stderr}")


def test_a_server_serves_from_folders_that_it_cannot_write_to(tmp_path: Path) -> None:
    cache, disk, temporary = tmp_path / "cache", tmp_path / "kv", tmp_path / "temporary"
    for folder in (cache, disk, temporary):
        folder.mkdir()
    skip_unless_it_can_be_made(cache, disk)
    write_tiny_gguf(tmp_path)
    options = ("--disk-cache", str(disk), "--context", "512", "--pool-tokens", "512")
    command = on_read_only(cache, disk, command=COMMAND)
    with serving(tmp_path, *options, command=command, environment={"TMPDIR": str(temporary)}) as server:
        chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        warned = server.lines_with("WARNING", count=2)
        for folder, line in zip((cache, disk), warned, strict=True):
            assert f"{folder}" in line
            assert "Read-only file system" in line
        assert server.stop() == 0
        server.stderr()  # all of it
        assert len(server.lines_with("WARNING")) == 2
    assert not list(temporary.iterdir())
    assert not [*cache.iterdir(), *disk.iterdir()]
