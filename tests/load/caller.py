"""One of the callers of a load run: a session, and seeded requests on it and beside it, each checked against what is known.

    open ─▶ turn, append, leave, interrupt, rewind, fork ... ─▶ close ─▶ open ...

Knows the length of its session before each request. Where a request was left, the length afterwards is asked for.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tests.load.asking import Asking, Json, UnexpectedError, is_busy, pause

STATE_TRIES_MAX = 2000
STATE_PAUSE_S = 0.02


def check(holds: bool, what: str, answer: object) -> None:
    if not holds:
        raise UnexpectedError(f"{what}: {answer!r:.600}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the server was started with. In tokens."""

    model: str
    vocab: int
    context: int
    long_prompt: int  # several chunks
    answer: int = 24
    long_answer: int = 120


class Caller:
    def __init__(self, number: int, seed: int, asking: Asking, sizes: Sizes) -> None:
        self._number = number
        self._rng = Random(seed * 1000 + number)
        self._asking = asking
        self._sizes = sizes
        self._count = 0
        self._id = ""
        self._tokens = 0
        self._turns = 0
        self._trail: deque[tuple[str, int, int]] = deque(maxlen=8)  # what it did last, and what it knew before
        self._acts: list[tuple[int, str, Callable[[], Awaitable[None]]]] = [
            (8, "turn", self._turn),
            (8, "turn, streamed", self._streamed),
            (5, "append", self._append),
            (4, "disconnect in mid-stream", self._leave_stream),
            (4, "disconnect in prefill", self._leave_prefill),
            (3, "disconnect, not streamed", self._leave_plain),
            (4, "interrupt", self._interrupt),
            (3, "rewind", self._rewind),
            (3, "fork", self._fork),
            (2, "exported, closed, imported", self._carry),
            (2, "close", self._close),
            (2, "close in mid-turn", self._close_running),
            (3, "two turns at once", self._crowd),
            (2, "turn repeated", self._repeat),
            (3, "completion", self._completion),
            (2, "completion, left", self._leave_completion),
            (3, "chat completion", self._chat),
            (3, "native, aborted by id", self._abort),
        ]

    async def run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            if not self._id:
                await self._open()
            room = self._sizes.context - self._tokens
            if room < self._sizes.long_prompt + self._sizes.long_answer + 16:
                await self._close()
                continue
            name, act = self._rng.choices(
                [(name, act) for _, name, act in self._acts], [weight for weight, _, _ in self._acts]
            )[0]
            self._trail.append((name, self._tokens, self._turns))
            try:
                await act()
            except UnexpectedError as error:
                error.add_note(
                    f"caller {self._number}: {[*self._trail]}, now {self._tokens} tokens, {self._turns} turns"
                )
                raise
            self._asking.done[name] += 1
        if self._id:
            await self._close()

    # -- what requests are made of

    def _path(self, what: str = "") -> str:
        return f"/v1/sessions/{self._id}{what}"

    def _ids(self, count: int) -> list[int]:
        return [self._rng.randrange(3, self._sizes.vocab - 2) for _ in range(count)]

    def _body(self, prompt: int, answer: int) -> Json:
        body: Json = {"token_ids": self._ids(prompt), "max_tokens": answer, "ignore_eos": True}
        body["temperature"] = self._rng.choice((0.0, 0.8))
        if self._rng.random() < 0.2:
            body["logprobs"] = 2
        if self._rng.random() < 0.3:
            body["turn"] = self._turns
        return body

    def _short(self) -> Json:
        return self._body(self._rng.randint(1, 40), self._rng.randint(1, self._sizes.answer))

    def _stand(self, answer: Json, body: Json) -> None:
        """A whole turn was answered: it is exactly what was asked for, and the history is longer by it."""
        usage, wanted = answer["usage"], body.get("max_tokens", 0)
        check(usage["prompt_tokens"] == self._tokens + len(body["token_ids"]), "prompt_tokens", (self._tokens, answer))
        check(usage["completion_tokens"] == len(answer["token_ids"]) == wanted, "completion_tokens", answer)
        check(answer["finish_reason"] == "length", "finish reason", answer)
        check(answer["turn"] == self._turns, "number of the turn", (self._turns, answer))
        self._tokens, self._turns = usage["total_tokens"], self._turns + 1

    async def _look(self) -> None:
        """Wait until the session is idle, and see how long it is."""
        for _ in range(STATE_TRIES_MAX):
            shown = await self._asking.get(self._path())
            if shown["state"] == "idle":
                self._tokens, self._turns = shown["tokens"], shown["turns"]
                return
            await pause(STATE_PAUSE_S)
        raise UnexpectedError(f"a session that was left is still not idle: {shown}")

    async def _look_after_leaving(self, body: Json) -> None:
        """The turn was undone, or had ended before we were gone."""
        undone, whole = self._tokens, self._tokens + len(body["token_ids"]) + body["max_tokens"]
        await self._look()
        check(self._tokens in (undone, whole), "length after leaving", (undone, whole, self._tokens))
        self._asking.done["left: undone" if self._tokens == undone else "left: had ended"] += 1

    # -- acts on the session

    async def _open(self) -> None:
        self._id = (await self._asking.post("/v1/sessions", {}))["id"]
        self._tokens = self._turns = 0

    async def _close(self) -> None:
        closed = await self._asking.delete(self._path())
        check(closed["deleted"] is True, "closing an idle session", closed)
        self._id = ""

    async def _turn(self) -> None:
        body = self._short()
        self._stand(await self._asking.post(self._path("/turns"), body, may_be_busy=True), body)

    async def _streamed(self) -> None:
        body = {**self._short(), "stream": True}
        async with self._asking.stream(self._path("/turns"), body) as events:
            told: list[int] = []
            async for event in events:
                told += event["token_ids"] if event["type"] == "delta" else []
                last = event
        check(told == last.get("token_ids"), "deltas and the whole", (told, last))
        self._stand(last, body)

    async def _append(self) -> None:
        body: Json = {"token_ids": self._ids(self._rng.randint(1, 60))}
        self._stand(await self._asking.post(self._path("/append"), body, may_be_busy=True), body)

    async def _leave_stream(self) -> None:
        body = {**self._body(self._rng.randint(1, 30), self._sizes.long_answer), "stream": True}
        async with self._asking.stream(self._path("/turns"), body) as events:
            for _ in range(self._rng.randint(2, 8)):
                await anext(events, None)  # deltas are merged for a slow reader: the end may have come
        await self._look_after_leaving(body)

    async def _leave_prefill(self) -> None:
        body = {**self._body(self._sizes.long_prompt, self._sizes.answer), "stream": True}
        async with self._asking.stream(self._path("/turns"), body) as events:
            await anext(events)
        await self._look_after_leaving(body)

    async def _leave_plain(self) -> None:
        prompt = self._rng.choice((8, self._sizes.long_prompt))
        body = self._body(prompt, self._sizes.long_answer)
        try:
            async with asyncio.timeout(self._rng.uniform(0.001, 0.3)):
                await self._asking.post(self._path("/turns"), body, may_be_busy=True)
        except TimeoutError:
            await self._look_after_leaving(body)
        else:
            await self._look()

    async def _interrupt(self) -> None:
        body = {**self._body(self._rng.randint(1, 30), self._sizes.long_answer), "stream": True}
        before, keep = self._tokens, self._rng.choice((None, 0, 1, 3))
        async with self._asking.stream(self._path("/turns"), body) as events:
            last = await self._hear(events, 3)
            await self._asking.post(self._path("/interrupt"), {"keep": keep})
            async for event in events:
                last = event
        await self._look()
        reason = last.get("finish_reason")
        check(reason in (("abort", "length") if keep == 0 else ("interrupt", "length")), "interrupted", last)
        if reason != "length":
            kept = 0 if keep == 0 else len(body["token_ids"]) + last["kept_tokens"]
            check(self._tokens == before + kept, "length after an interruption", (before, kept, self._tokens, last))

    async def _hear(self, events: AsyncGenerator[Json, None], count: int) -> Json:
        """Tokens until `count` were told; the last event."""
        heard = 0
        async for event in events:
            heard += len(event.get("token_ids", []))
            if heard >= count:
                return event
        raise UnexpectedError("a stream ended before its tokens")

    async def _rewind(self) -> None:
        turns = self._rng.randint(0, self._turns)
        shown = await self._asking.post(self._path("/rewind"), {"turns": turns})
        check(shown["turns"] == turns and shown["tokens"] <= self._tokens, "rewind", shown)
        self._tokens, self._turns = shown["tokens"], turns

    async def _fork(self) -> None:
        """A turn on the branch, and one of the two is closed."""
        shown = await self._asking.post(self._path("/fork"), {})
        check((shown["tokens"], shown["turns"]) == (self._tokens, self._turns), "fork", shown)
        trunk, length, turns = self._id, self._tokens, self._turns
        self._id = shown["id"]
        await self._turn()
        if self._rng.random() < 0.5:
            trunk, self._id = self._id, trunk
            self._tokens, self._turns = length, turns
        closed = await self._asking.delete(f"/v1/sessions/{trunk}")
        check(closed["deleted"] is True, "closing a branch", closed)

    async def _carry(self) -> None:
        """Closed, and opened again from its file under the same name."""
        data = await self._asking.download(self._path("/export"))
        name = self._id
        await self._close()
        shown = await self._asking.upload(f"/v1/sessions/import?session_id={name}", data)
        check((shown["tokens"], shown["turns"]) == (self._tokens, self._turns), "import", shown)
        self._id = name

    async def _close_running(self) -> None:
        body = {**self._body(self._rng.randint(1, 30), self._sizes.long_answer), "stream": True}
        async with self._asking.stream(self._path("/turns"), body) as events:
            await anext(events)
            await self._asking.delete(self._path())
            async for event in events:
                last = event
        check(last["usage"]["completion_tokens"] == body["max_tokens"], "a turn that ends its session", last)
        self._id = ""

    async def _crowd(self) -> None:
        """Two at once: one runs, the other is refused or waits its turn."""
        bodies = [{**self._short(), "wait": self._rng.random() < 0.5} for _ in range(2)]
        for body in bodies:
            body.pop("turn", None)
        answers = await asyncio.gather(*(self._asking.once(self._path("/turns"), body) for body in bodies))
        for answer in answers:
            expected = answer.status_code in (200, 429, 503) or is_busy(answer)
            check(expected, "two turns at once", answer.text)
            if answer.status_code != 200:
                self._asking.done[f"{answer.status_code}, asked for"] += 1
        await self._look()

    async def _repeat(self) -> None:
        body = {**self._short(), "turn": self._turns}
        first = await self._asking.post(self._path("/turns"), body, may_be_busy=True)
        self._stand(first, body)
        again = await self._asking.post(self._path("/turns"), body)
        check(again["replayed"] is True and again["token_ids"] == first["token_ids"], "repeated", (first, again))

    # -- acts beside it

    def _completion_body(self, answer: int) -> Json:
        start = list(range(3, 3 + self._rng.choice((16, 48))))  # shared by many
        return {"model": self._sizes.model, "prompt": start + self._ids(self._rng.randint(1, 40)), "max_tokens": answer}

    async def _completion(self) -> None:
        body = {**self._completion_body(self._rng.randint(1, self._sizes.answer)), "n": self._rng.choice((1, 2))}
        if is_scored := self._rng.random() < 0.3:
            body |= {"echo": True, "logprobs": 1}
        answer = await self._asking.post("/v1/completions", body)
        check(len(answer["choices"]) == body["n"], "completion", answer)
        for choice in answer["choices"] if is_scored else ():
            told = choice["logprobs"]["token_logprobs"]
            check(told[0] is None and len(told) >= len(body["prompt"]) and None not in told[1:], "scored", answer)
        check(answer["usage"]["prompt_tokens"] == len(body["prompt"]), "completion", answer)

    async def _leave_completion(self) -> None:
        body = {**self._completion_body(self._sizes.long_answer), "stream": True, "ignore_eos": True}
        async with self._asking.stream("/v1/completions", body) as events:
            for _ in range(self._rng.randint(1, 5)):
                await anext(events, None)

    async def _chat(self) -> None:
        body = {"model": self._sizes.model, "messages": [{"role": "user", "content": f"Number {self._rng.random()}"}]}
        answer = await self._asking.post("/v1/chat/completions", {**body, "max_tokens": self._sizes.answer})
        check(answer["choices"][0]["finish_reason"] in ("stop", "length"), "chat", answer)

    async def _abort(self) -> None:
        self._count += 1
        rid = f"caller-{self._number}-{self._count}"
        sampling = {"max_new_tokens": self._sizes.long_answer, "ignore_eos": True}
        body = {"rid": rid, "input_ids": self._ids(30), "sampling_params": sampling, "stream": True}
        async with self._asking.stream("/generate", body) as events:
            await anext(events)
            response = await self._asking.once("/abort_request", {"rid": rid})
            check(response.status_code in (200, 404), "abort", response.text)
            last: Json = {}
            async for event in events:
                last = event
        if last:
            check(last["meta_info"]["finish_reason"]["type"] in ("abort", "length"), "aborted", last)
