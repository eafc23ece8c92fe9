"""The command line as a person and a program meet it: a process of its own, its streams and its exit code."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sojourn.app import chat
from sojourn.app.cli import app, run
from sojourn.engine.thread import EngineStoppedError

COMMAND = [sys.executable, "-c", "from sojourn.app.cli import main; main()"]
GUARD_S = 120  # a generous guard against hanging, never a measure


def sojourn(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=GUARD_S, check=False)


def records(process: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_the_version_is_that_of_the_package() -> None:
    process = sojourn("--version")
    assert (process.returncode, process.stdout.decode()) == (0, f"sojourn {metadata.version('sojourn')}\n")


# -- models


def test_models_list_names_the_catalogue() -> None:
    result = CliRunner().invoke(app, ["models", "list"])
    assert result.exit_code == 0
    assert "smollm2" in result.stdout
    assert "gemma3-270m" in result.stdout


@pytest.mark.usefixtures("smollm2")
def test_models_show_tells_the_numbers() -> None:
    result = CliRunner().invoke(app, ["models", "show", "smollm2"])
    assert result.exit_code == 0
    rows = dict(line.split("\t", 1) for line in result.stdout.splitlines() if not line.startswith("note"))
    assert (rows["layers"], rows["context"], rows["vocabulary"]) == ("30", "8,192", "49,152")
    assert rows["heads"] == "9 (3 of keys and values) of 64"
    assert rows["here"].startswith("ready")


@pytest.mark.usefixtures("smollm2")
def test_pulling_what_is_here_says_that_it_is_ready() -> None:
    result = CliRunner().invoke(app, ["models", "pull", "smollm2"])
    assert result.exit_code == 0
    assert "smollm2 is ready" in result.stdout


# -- errors: one or two lines, an exit code, no traceback


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["chat", "--threads", "0"], 2, "threads must be a whole number from 1"),
        (["chat", "--context", "9000"], 2, "9,000 is over the model's own: smollm2 has 8,192"),
        (["chat", "--context", "1"], 2, "context must be"),
        (["chat", "--temperature", "nan"], 2, "temperature must be"),
        (["chat", "--top-p", "2"], 2, "top_p must be"),
        (["chat", "--max-tokens", "0"], 2, "max_tokens must be"),
        (["chat", "--weights", "2bit"], 2, "2bit"),
        (["chat", "--page-size", "3"], 2, "power of two"),
        (["chat", "--bogus"], 2, "--bogus"),
        (["chat", "--model", "absent.gguf"], 1, "absent.gguf"),
        (["models", "show", "smolm2"], 1, "did you mean smollm2"),
        (["nothing"], 2, "nothing"),
    ],
)
def test_an_error_is_a_line_and_a_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("sojourn: ")
    assert len(captured.err.splitlines()) <= 2
    assert captured.out == ""


def test_a_process_fails_as_the_function_does() -> None:
    process = sojourn("chat", "--threads", "0")
    assert process.returncode == 2
    assert b"Traceback" not in process.stderr


def test_without_arguments_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    assert "Usage: sojourn" in "".join(capsys.readouterr())


# -- chat through pipes


def test_two_turns_as_json_share_one_history() -> None:
    process = sojourn("chat", "--json", "--temperature", "0", stdin=b"Hello!\nWhat did I just say?\n")
    assert process.returncode == 0
    first, second = records(process)
    assert list(first) == [
        "turn",
        "text",
        "prompt_ids",
        "output_ids",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "finish_reason",
        "ttft_ms",
        "tokens_per_s",
        "pages_held",
    ]
    said = int(str(first["prompt_tokens"])) + int(str(first["completion_tokens"]))
    assert second["cached_tokens"] in {said, said - 1}
    assert isinstance(second["prompt_ids"], list)
    assert second["prompt_ids"].count(9690) == 1, "one system message"
    assert (first["turn"], second["turn"]) == (1, 2)
    again = sojourn("chat", "--json", "--temperature", "0", stdin=b"Hello!\nWhat did I just say?\n")
    assert [r["output_ids"] for r in records(again)] == [first["output_ids"], second["output_ids"]]


def test_a_refused_line_is_an_error_object_and_the_conversation_goes_on() -> None:
    lines = [b"Hello!", b"", b"\xff\xfe broken", b"word " * 600, b"Still there?"]
    arguments = ("chat", "--json", "--temperature", "0", "--max-tokens", "8", "--context", "512")
    process = sojourn(*arguments, stdin=b"\n".join(lines) + b"\n")
    first, empty, broken, long, last = records(process)
    assert "empty" in str(empty["error"])
    assert "line 3 is not valid UTF-8" in str(broken["error"])
    assert "512" in str(long["error"])
    assert re.search(r"\b6\d\d\b", str(long["error"])), "both lengths"
    assert [empty["line"], broken["line"], long["line"]] == [2, 3, 4]
    said = int(str(first["prompt_tokens"])) + int(str(first["completion_tokens"]))
    assert last["turn"] == 2
    assert last["cached_tokens"] in {said, said - 1}
    assert process.returncode == 1, "some line failed"


def test_without_a_terminal_answers_are_on_stdout_and_the_rest_on_stderr() -> None:
    process = sojourn("chat", "--temperature", "0", "--max-tokens", "4", stdin=b"Hello!\n\xff\nAnd?")
    answers = process.stdout.decode().splitlines()
    assert len(answers) == 2
    assert b"cached" not in process.stdout
    assert process.stderr.count(b"pages held") == 2
    assert b"line 2 is not valid UTF-8" in process.stderr


def test_no_input_at_all_is_no_conversation() -> None:
    process = sojourn("chat", "--json")
    assert (process.returncode, process.stdout) == (0, b"")


# -- chat at a terminal


class Terminal:
    """The program's side is a pseudo-terminal; ours reads until something appears."""

    def __init__(self, process: int, master: int) -> None:
        self.process = process
        self.seen = ""
        self._master = master

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until `pattern` appears after what earlier waits have consumed."""
        while (found := re.search(pattern, self.seen)) is None:
            assert select.select([self._master], [], [], GUARD_S)[0], f"no {pattern!r} in {self.seen!r}"
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the other side is gone
                data = b""
            assert data, f"ended without {pattern!r}: {self.seen!r}"
            self.seen += data.decode(errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    command = [*COMMAND, *arguments]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    process, master = pty.fork()
    if process == 0:
        os.execve(command[0], command, environment)
    try:
        yield Terminal(process, master)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.close(master)


PROMPT = r"\n> "
COSTS = r"\d+ cached · \d+ new · \d+ generated .*pages held"


@pytest.mark.usefixtures("smollm2")
def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(tmp_path: Path) -> None:
    with terminal("chat", "--temperature", "0") as screen:
        assert "smollm2" in screen.wait_for(PROMPT)
        screen.type("Write a very long story about a dog.\r")
        screen.wait_for("story about a dog")
        screen.wait_for(r"\w+ \w+")
        screen.type("\x03")
        assert "stopped" in screen.wait_for(COSTS + r" · .*") + screen.wait_for(PROMPT)
        screen.type("Hello!\r")
        line = screen.wait_for(COSTS)
        cached = re.search(r"(\d+) cached", line)
        assert cached is not None
        assert int(cached[1]) > 32, "the interrupted turn is part of the conversation"
        screen.wait_for(PROMPT)
        screen.type("\x04")
        assert screen.exit_code() == 0


@pytest.mark.usefixtures("smollm2")
def test_ctrl_c_before_the_first_token_keeps_the_conversation() -> None:
    with terminal("chat", "--temperature", "0", "--max-tokens", "8") as screen:
        screen.wait_for(PROMPT)
        screen.type("Hello!\r")
        screen.wait_for(COSTS)
        screen.wait_for(PROMPT)
        for _ in range(50):
            screen.type("word " * 700 + "end.\r")
            screen.wait_for(r"end\.\s*\n")
            screen.type("\x03")
            if "stopped" in screen.wait_for("stopped|again leaves"):
                break
            screen.wait_for(PROMPT)  # it came before the line was taken: once more, at a fresh prompt
            screen.type("\r")
            screen.wait_for(PROMPT)
        else:
            pytest.fail("no Ctrl-C ever came between the line and the first token")
        screen.wait_for(PROMPT)
        screen.type("Still there?\r")
        screen.wait_for(COSTS)


@pytest.mark.usefixtures("smollm2")
def test_an_empty_line_is_asked_again_and_ctrl_d_leaves() -> None:
    with terminal("chat") as screen:
        screen.wait_for(PROMPT)
        screen.type("\r")
        screen.wait_for(PROMPT)
        screen.type("\x04")
        assert screen.exit_code() == 0


def test_ctrl_c_twice_at_the_prompt_leaves_and_once_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it may have been meant for an answer that had just ended. (A signal that comes before the terminal's input
    listens waits for the next key, so a pseudo-terminal cannot time this.)"""
    typed: list[str | None] = [None, "Hello", None, None]

    def answer(prompt: str) -> str:
        line = typed.pop(0)
        if line is None:
            raise KeyboardInterrupt
        return line

    monkeypatch.setattr("builtins.input", answer)
    console = Console(file=io.StringIO(), width=80)
    assert chat._prompt(console) == "Hello"
    assert chat._prompt(console) is None
    assert typed == []


# -- a model that is none


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--model", "nosuch"],
            "--model nosuch: no such model, file or directory. Known names: smollm2, gemma3-270m; a .gguf",
        ),
        (["--model", "models/mistyped.gguf"], "--model models/mistyped.gguf: no such model, file or directory."),
        (["--model", "{folder}"], "--model {folder}: no config.json in it"),
        (["--model", "{folder}/text.gguf"], "--model {folder}/text.gguf: not a GGUF file"),
        (["--speculate", "ngrams"], "--speculate ngrams: no such model, file or directory."),
        (["--speculate", "smolm2"], "(did you mean smollm2?)"),
    ],
)
def test_a_model_that_is_none_is_refused_before_the_server_starts(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("no weights")
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    assert run(["serve", "--port", "0", "--durability", "none", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "", "no address of a server that never is"
    (line,) = err.splitlines()
    assert said.format(folder=tmp_path) in line
    assert ("or off, or ngram" in line) == (arguments[0] == "--speculate")


# -- a broken law


def test_an_engine_that_stops_leaves_a_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(**options: object) -> None:
        raise EngineStoppedError("the engine has stopped: page 7", "page 7 of the full pool\nits moves")

    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    monkeypatch.setattr("sojourn.app.cli_models.list_models", lambda cache: stop())
    assert run(["models", "list"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "sojourn: the engine has stopped: page 7"
    path = Path(second.split()[-1])
    assert path.parent == tmp_path / "reports"
    assert path.read_text() == "page 7 of the full pool\nits moves\n"
