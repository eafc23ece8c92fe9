"""Rows of the table of scenarios with guesses: as many tokens as asked for, the same ones, and no page past them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from tests.api.conftest import quiet
from tests.api.test_sessions import Json, ids, open_session, turn
from tests.support.server import Server, eventually, serving, write_tiny_gguf

pytestmark = pytest.mark.http_scenario
WINDOW = 8  # of the tiny model with one
TWO_LETTERS = {str(token): 60.0 for token in ids(2, 2)}  # what is said of them repeats itself soon
PROMPT: Json = {"token_ids": ids(8) * 3, "ignore_eos": True}
PROMPTS: dict[str, Json] = {"ngram": {**PROMPT, "logit_bias": TWO_LETTERS}, "model": PROMPT}


def guessing(models: Path, who: str, overlap: str, page_size: int, architecture: str = "llama") -> Iterator[Server]:
    model = write_tiny_gguf(models, architecture=architecture)
    size = ("--context", "2048", "--pool-tokens", "8192", "--chunk", "64", "--page-size", str(page_size))
    guesser = who
    if who == "model":  # a smaller one: what it costs to guess is expected from its size
        guesser = str(write_tiny_gguf(models, architecture=architecture, quantization=GGMLQuantizationType.Q8_0))
    with serving(models, *size, overlap, "--speculate", guesser, "--drafts-max", "6", model=model) as server:
        yield server


@dataclass(frozen=True)
class Guesser:
    server: Server
    page_size: int
    prompt: Json


@pytest.fixture(
    scope="module", params=[("ngram", "--overlap", 1), ("model", "--no-overlap", 16)], ids=["ngram", "model"]
)
def guesser_server(request: pytest.FixtureRequest, models: Path) -> Iterator[Guesser]:
    who, overlap, page_size = request.param
    for server in guessing(models, who, overlap, page_size):
        yield Guesser(server, page_size, PROMPTS[who])


@pytest.fixture
def guesser(guesser_server: Guesser) -> Iterator[Guesser]:
    yield guesser_server
    quiet(guesser_server.server)


@pytest.fixture(scope="module")
def windowed(models: Path) -> Iterator[Server]:
    yield from guessing(models, "ngram", "--overlap", 4, "gemma3")


def accepted(server: Server) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sojourn_spec_accepted_tokens_total"))


def until_guesses_stand(server: Server, before: float, check: Callable[[], None]) -> None:
    """What is checked is checked again until more of what was guessed stood than `before`: when a guess is worth it is
    chosen by what it cost just now, and metrics come with the engine's heartbeats."""

    def have_stood() -> bool:
        check()
        return accepted(server) > before

    eventually(have_stood, "no guess stood")


def held(server: Server, session: str) -> Json:
    """Own and leased pages together, by pool."""
    shown = server.http.get(f"/v1/sessions/{session}").json()["pages"]
    return {pool: sum(pages.values()) for pool, pages in shown.items()}


def until_idle(server: Server) -> None:
    """A step that runs beside the end of a turn has pages behind the fence until it is over."""

    def is_idle() -> bool:
        return all(pool["fenced"] == pool["running"] == 0 for pool in server.http.get("/v1/pools").json()["pools"])

    eventually(is_idle, "pages are fenced, and nothing runs")


def test_b5_as_many_tokens_as_asked_for_and_no_page_past_them(guesser: Guesser) -> None:
    server, expected, before = guesser.server, list[int](), accepted(guesser.server)

    def check(num: int) -> None:
        session = open_session(server)
        answer = turn(server, session, max_tokens=num, **guesser.prompt)
        expected.extend(answer["token_ids"][len(expected) :])
        assert answer["token_ids"] == expected[:num]
        assert answer["usage"]["completion_tokens"] == num
        assert answer["finish_reason"] == "length"
        until_idle(server)
        most = ceil((24 + num) / guesser.page_size)
        assert all(0 < number <= most for number in held(server, session).values()), (num, held(server, session))
        server.http.delete(f"/v1/sessions/{session}").raise_for_status()

    for num in (40, *range(9, 0, -1)):
        check(num)
    until_guesses_stand(server, before, lambda: check(40))
    assert len(set(expected)) > 1


def test_b11_stop_strings_at_every_offset_with_guesses_and_without(server: Server, guesser: Guesser) -> None:
    prompt, before = {**guesser.prompt, "max_tokens": 40}, accepted(guesser.server)

    def told(one: Server, **more: str) -> Json:
        session = open_session(one)
        answer = turn(one, session, **prompt, **more)
        one.http.delete(f"/v1/sessions/{session}").raise_for_status()
        return answer

    def check(stop: str) -> None:
        plain, with_guesses = told(server, stop=stop), told(guesser.server, stop=stop)
        for field in ("text", "token_ids", "finish_reason", "stop"):
            assert with_guesses[field] == plain[field], (stop, field)
        for field in ("prompt_tokens", "completion_tokens"):
            assert with_guesses["usage"][field] == plain["usage"][field], (stop, field)

    text = told(server)["text"]
    stops = {text[at : at + length] for at in range(len(text)) for length in (1, 3, 5)}
    for stop in sorted(stops):
        check(stop)
    until_guesses_stand(guesser.server, before, lambda: check(text[-5:]))


def test_b9_fifty_turns_hold_no_more_than_a_window(windowed: Server) -> None:
    session, few = open_session(windowed), {"ignore_eos": True, "logit_bias": TWO_LETTERS}
    numbers, before = count(), accepted(windowed)

    def check() -> None:
        number = next(numbers)
        turn(windowed, session, token_ids=ids(7, number % 3), max_tokens=5 + number % 7, **few)
        until_idle(windowed)
        assert 0 < held(windowed, session)["swa"] <= ceil(WINDOW / 4) + 1

    for _ in range(50):
        check()
    until_guesses_stand(windowed, before, check)
    quiet(windowed)
