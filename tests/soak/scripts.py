"""Conversations whose every answer is known: asked once, alone on a quiet server, before anything disturbs it."""

from dataclasses import dataclass
from random import Random

from tests.load.asking import Json
from tests.load.caller import Sizes, check
from tests.support.server import Server

TURNS = 5
ANSWER = 10
FIRST = (120, 260)  # tokens of the first turn, as a long instruction
LATER = (8, 40)


@dataclass(frozen=True, slots=True)
class Script:
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def length(self, turns: int) -> int:
        """Of the history after so many turns."""
        return sum(len(tokens) for part in (self.prompts, self.answers) for tokens in part[:turns])


def body_of(prompt: tuple[int, ...], answer: int = ANSWER) -> Json:
    return {"token_ids": list(prompt), "max_tokens": answer, "ignore_eos": True, "temperature": 0.0}


def learned(server: Server, sizes: Sizes, count: int, seed: int) -> list[Script]:
    """Nothing of it is left behind: the cache is dropped."""
    rng = Random(seed)
    scripts = [_learn(server, _prompts(rng, sizes.vocab)) for _ in range(count)]
    flushed = server.http.post("/v1/pools/flush")
    check(flushed.status_code == 200, "flush", flushed.text)
    return scripts


def _prompts(rng: Random, vocab: int) -> tuple[tuple[int, ...], ...]:
    spans = (FIRST, *(LATER for _ in range(TURNS - 1)))
    return tuple(tuple(rng.randrange(3, vocab - 2) for _ in range(rng.randint(*span))) for span in spans)


def _learn(server: Server, prompts: tuple[tuple[int, ...], ...]) -> Script:
    http, answers = server.http, []
    name = http.post("/v1/sessions", json={}).json()["id"]
    for prompt in prompts:
        answer = http.post(f"/v1/sessions/{name}/turns", json=body_of(prompt))
        check(answer.status_code == 200, "a turn on a quiet server", answer.text)
        answers.append(tuple(answer.json()["token_ids"]))
    http.delete(f"/v1/sessions/{name}")
    return Script(prompts, tuple(answers))
