"""The table of decisions: what is in it, and how many sessions a pool keeps."""

import io
import os
import pty
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tests.support.server import COMMAND, GUARD_S, write_tiny_gguf

from sojourn.app.config import EngineOptions
from sojourn.app.sizing import EngineSize
from sojourn.app.startup import Served, conversations, decisions, table
from sojourn.pages.sizing import PoolLayout

SERVED = Served("tiny", "a file", 3 << 20, 16384 * 20, 2)
ONE_POOL = EngineSize(8192, 16384, PoolLayout(16, 0), (1025,))


def test_a_pool_keeps_as_many_sessions_as_have_whole_pages_in_it() -> None:
    assert [conversations(ONE_POOL, length) for length in (1, 16, 17, 1024, 8192, 16384)] == [1024, 1024, 512, 16, 2, 1]


def test_the_pool_that_is_full_first_says_how_many() -> None:
    windowed = EngineSize(8192, 16384, PoolLayout(16, 512), (1025, 101))
    assert conversations(windowed, 16) == 100, "a page of each"
    assert conversations(windowed, 8192) < 2, "two windows of it do not fit a hundred pages"


def test_the_table_answers_the_questions_of_a_start() -> None:
    rows = dict(decisions(SERVED, ONE_POOL, EngineOptions(max_running=4, chunk=256), "none: this machine only"))
    assert rows["KV"] == "f16, 20 bytes per token, 0 MiB for 16,384 tokens"
    assert rows["pages"] == "1,024 full, of 16 tokens"
    assert rows["sessions kept"] == "16 of 1,024 tokens, 4 of 4,096 tokens, 2 of 8,192 tokens"
    assert rows["guesses ahead"] == "off"
    guessing = EngineOptions(speculate="ngram", drafts_max=5, overlap=True)
    rows_guessing = dict(decisions(SERVED, ONE_POOL, guessing, "none"))
    assert rows_guessing["guesses ahead"] == "ngram, up to 5 tokens"
    modelled = dict(decisions(replace(SERVED, draft_pages=512), ONE_POOL, guessing, "none"))
    assert modelled["pages"] == "1,024 full, 512 draft, of 16 tokens"
    assert rows_guessing["threads"] == "2, planning beside the step"
    assert rows["keys"] == "none: this machine only"
    drawn = io.StringIO()
    Console(width=100, file=drawn).print(table(list(rows.items())))
    assert len(drawn.getvalue().splitlines()) == len(rows)


def test_a_person_at_a_terminal_sees_it(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path)
    primary, secondary = pty.openpty()
    command = [*COMMAND, "serve", "--port", "0", "--model", str(model), "--threads", "1", "--context", "512"]
    environment = {**os.environ, "SOJOURN_CACHE": str(tmp_path / "cache"), "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=secondary, env=environment) as process:
        os.close(secondary)
        seen = b""
        while b"keys" not in seen:
            seen += os.read(primary, 4096)
        process.terminate()
        assert process.wait(GUARD_S) == 0
    os.close(primary)
    assert re.search(rb"sessions kept +64 of 512 tokens", seen), seen
