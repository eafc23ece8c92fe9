"""A caller of the soak that keeps several long conversations and takes them up in turn: most of the time each is idle, and
is pushed out of the pool by the others. Whatever becomes of it in between, its next answer is the one that is known.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.load.asking import Asking, Json, UnexpectedError, pause
from tests.load.caller import STATE_PAUSE_S, STATE_TRIES_MAX, check
from tests.soak.scripts import ANSWER, Script, body_of


@dataclass(slots=True)
class Talk:
    """One conversation: `at` turns of its script are in its history."""

    script: Script
    id: str = ""
    at: int = 0

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.id}"

    @property
    def length(self) -> int:
        return self.script.length(self.at)


class Keeper:
    def __init__(self, number: int, seed: int, asking: Asking, scripts: Sequence[Script]) -> None:
        self._rng = Random(seed * 1000 + number)
        self._asking = asking
        self._talks = deque(Talk(script) for script in scripts)
        self._acts: list[tuple[int, str, Callable[[Talk], Awaitable[None]]]] = [
            (10, "turn", self._turn),
            (10, "turn, streamed", self._streamed),
            (4, "append, then the rest", self._in_two),
            (4, "left in mid-turn", self._leave),
            (4, "interrupted and undone", self._undo),
            (4, "rewind", self._rewind),
            (4, "fork", self._fork),
            (4, "exported, closed, imported", self._carry),
        ]

    async def run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            talk = self._talks.popleft()  # the one that was idle the longest
            if talk.at == len(talk.script):
                await self._close(talk)
            if not talk.id:
                talk.id, talk.at = (await self._asking.post("/v1/sessions", {}))["id"], 0
            ((_, name, act),) = self._rng.choices(self._acts, [weight for weight, _, _ in self._acts])
            await act(talk)
            self._asking.done[f"known conversation: {name}"] += 1
            self._talks.append(talk)
        for talk in self._talks:
            if talk.id:
                await self._close(talk)

    async def _close(self, talk: Talk) -> None:
        closed = await self._asking.delete(talk.path)
        check(closed["deleted"] is True, "closing an idle session", closed)
        talk.id, talk.at = "", 0

    def _heard(self, talk: Talk, answer: Json, prompt: int | None = None) -> None:
        """The turn that was next in the script: word for word, whatever was still there of what came before."""
        expected, usage = talk.script.answers[talk.at], answer["usage"]
        before = talk.length if prompt is None else talk.length + len(talk.script.prompts[talk.at]) - prompt
        whole = talk.script.length(talk.at + 1)
        check(tuple(answer["token_ids"]) == expected, "a known answer", (talk, expected, answer))
        check(usage["total_tokens"] == whole, "length of the history", (whole, answer))
        check(usage["cached_tokens"] <= max(0, whole - ANSWER - 1), "cached tokens", answer)
        if before:
            kept = "all" if usage["cached_tokens"] >= before - 1 else f"part: {answer['cache']['miss_reason']}"
            self._asking.done[f"resumed from {answer['cache']['source']}, {kept}"] += 1
        talk.at += 1

    def _body(self, talk: Talk) -> Json:
        return body_of(talk.script.prompts[talk.at])

    async def _turn(self, talk: Talk) -> None:
        self._heard(talk, await self._asking.post(f"{talk.path}/turns", self._body(talk), may_be_busy=True))

    async def _streamed(self, talk: Talk) -> None:
        async with self._asking.stream(f"{talk.path}/turns", {**self._body(talk), "stream": True}) as events:
            told: list[int] = []
            async for event in events:
                told += event["token_ids"] if event["type"] == "delta" else []
                last = event
        check(told == last.get("token_ids"), "deltas and the whole", (told, last))
        self._heard(talk, last)

    async def _in_two(self, talk: Talk) -> None:
        """The first tokens ahead; they are a turn of their own, so nothing here counts by turns."""
        tokens = talk.script.prompts[talk.at]
        cut = self._rng.randint(1, len(tokens) - 1)
        await self._asking.post(f"{talk.path}/append", {"token_ids": list(tokens[:cut])}, may_be_busy=True)
        answer = await self._asking.post(f"{talk.path}/turns", body_of(tokens[cut:]), may_be_busy=True)
        self._heard(talk, answer, len(tokens) - cut)

    async def _leave(self, talk: Talk) -> None:
        async with self._asking.stream(f"{talk.path}/turns", {**self._body(talk), "stream": True}) as events:
            for _ in range(self._rng.randint(1, 4)):
                await anext(events, None)
        await self._settle(talk)

    async def _undo(self, talk: Talk) -> None:
        async with self._asking.stream(f"{talk.path}/turns", {**self._body(talk), "stream": True}) as events:
            await anext(events)
            await self._asking.post(f"{talk.path}/interrupt", {"keep": 0})
            async for event in events:
                last = event
        check(last["finish_reason"] in ("abort", "length"), "interrupted", last)
        await self._settle(talk)

    async def _settle(self, talk: Talk) -> None:
        """The turn was undone, or had ended before it could be."""
        for _ in range(STATE_TRIES_MAX):
            shown = await self._asking.get(talk.path)
            if shown["state"] == "idle":
                break
            await pause(STATE_PAUSE_S)
        else:
            raise UnexpectedError(f"a session that was left is still not idle: {shown}")
        undone, ended = talk.length, talk.script.length(talk.at + 1)
        check(shown["tokens"] in (undone, ended), "length after leaving", (undone, ended, shown))
        talk.at += shown["tokens"] == ended

    async def _rewind(self, talk: Talk) -> None:
        talk.at = self._rng.randint(0, talk.at)
        shown = await self._asking.post(f"{talk.path}/rewind", {"length": talk.length})
        check(shown["tokens"] == talk.length, "rewind", (talk.length, shown))

    async def _fork(self, talk: Talk) -> None:
        """The conversation goes on on its branch, from somewhere before; the trunk is closed."""
        at = self._rng.randint(0, talk.at)
        shown = await self._asking.post(f"{talk.path}/fork", {"length": talk.script.length(at)})
        await self._close(talk)
        talk.id, talk.at = shown["id"], at
        check(shown["tokens"] == talk.length, "fork", (talk.length, shown))

    async def _carry(self, talk: Talk) -> None:
        name, at = talk.id, talk.at
        data = await self._asking.download(f"{talk.path}/export")
        await self._close(talk)
        shown = await self._asking.upload(f"/v1/sessions/import?session_id={name}", data)
        talk.id, talk.at = name, at
        check(shown["tokens"] == talk.length, "import", (talk.length, shown))
