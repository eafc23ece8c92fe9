"""What answers a request: some choices that stand alone, or one turn of a session. Prompts in; pieces and outcomes out.

    prompt ─▶ first choice ── its first token: the prompt is computed and shared ─▶ the other choices

`enter` once, `steps` to their end, `leave` always: whatever still runs by then is undone. Knows no wording of an answer.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from sojourn.api import wire
from sojourn.api.account import Asker
from sojourn.api.front import Front
from sojourn.api.generation import Generation, Piece
from sojourn.api.openai.objects import FinishReason
from sojourn.api.openai.schemas import CHOICES_MAX
from sojourn.api.openai.shown import Echo
from sojourn.api.options import TurnOptions
from sojourn.api.sessions.schemas import InnerTurnBody
from sojourn.api.sessions.turns import SessionDesk, TurnRun
from sojourn.core.errors import ClientError, ConflictError, SojournError

QUEUE_MAX = 64  # pieces that wait for a slow reader; what comes meanwhile is merged in the feeds
# An interruption keeps what was said. An abort has no reason here: it is an error.
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "interrupt": "stop"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a choice ended. Only the first choice of a prompt counts its prompt."""

    finish_reason: FinishReason
    stop: str | int | None  # the stop string or the end-of-sequence id that ended it
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


Step = tuple[int, Echo | Piece | Outcome]  # of a choice; its echo is its first, its outcome its last


class Run(Protocol):
    async def enter(self) -> None:
        """Started, or refused with nothing left behind."""
        ...

    def steps(self) -> AsyncIterator[Step]:
        """In order per choice."""
        ...

    async def leave(self) -> None: ...


def finish_reason_of(reason: str, message: str = "") -> FinishReason:
    if reason not in REASONS:
        why = f": {message}" if message else ""
        raise ConflictError(f"the request was undone before its end{why}", code="aborted")
    return REASONS[reason]


# -- alone


def choice_seed(seed: int, choice: int) -> int:
    """A seed per choice, the same whatever else is asked for; the first choice has the request's own."""
    if choice == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{choice}".encode()).digest()[:8], "little")


@dataclass(frozen=True, slots=True)
class Plan:
    """`n` choices of each prompt; the choice of index `p * n + c` is prompt p's choice c.

    `echoes`: the prompts as they are shown, with log-probabilities of their tokens (`options` say how many); None where
    there is no need of them. `only_echoes`: nothing is generated.
    """

    prompts: list[list[int]]
    n: int
    options: TurnOptions
    cache_salt: str = ""
    echoes: list[Echo] | None = None
    only_echoes: bool = False

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


class StatelessRun:
    """Requests that stand alone. Owns its generations and the tasks that read them."""

    def __init__(self, front: Front, asker: Asker, plan: Plan) -> None:
        self._front = front
        self._asker = asker
        self._plan = plan
        self._seed = front.world.seed()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._leaders: list[Generation] = []
        self._queue: asyncio.Queue[Step | Exception] = asyncio.Queue(QUEUE_MAX)

    async def enter(self) -> None:
        plan, settings = self._plan, self._front.settings
        most = min(CHOICES_MAX, settings.requests_max, settings.tenant_requests_max)
        if plan.num_choices > most:
            raise ClientError(
                f"{len(plan.prompts)} prompts with n {plan.n} are {plan.num_choices} choices, at most {most}", param="n"
            )
        try:
            for _ in range(plan.num_choices):
                await self._stack.enter_async_context(self._front.work(self._asker.tenant))
            for prompt in range(len(plan.prompts)):
                self._leaders.append(await self._start(prompt, 0))
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._stack.aclose()

    async def steps(self) -> AsyncIterator[Step]:
        if self._plan.num_choices == 1:
            async for one in self._choice_steps(0, self._leaders[0]):
                yield 0, one
            return
        for prompt in range(len(self._plan.prompts)):
            computed = asyncio.Event()
            for choice in range(self._plan.n):
                self._tasks.append(asyncio.create_task(self._read(prompt, choice, computed)))
        left = self._plan.num_choices
        while left:
            step = await self._queue.get()
            if isinstance(step, Exception):
                raise step
            left -= isinstance(step[1], Outcome)
            yield step

    async def _read(self, prompt: int, choice: int, computed: asyncio.Event) -> None:
        """One choice into the queue. `computed`: the prompt is in the cache, so that the others find it there."""
        index = prompt * self._plan.n + choice
        try:
            if choice:
                await computed.wait()
            generation = await self._start(prompt, choice) if choice else self._leaders[prompt]
            async for step in self._choice_steps(prompt, generation):
                computed.set()
                if choice and isinstance(step, Outcome):
                    await self._queue.put((index, replace(step, prompt_tokens=0, cached_tokens=0)))
                else:
                    await self._queue.put((index, step))
        except SojournError as error:
            await self._queue.put(error)
        except Exception as error:
            await self._queue.put(error)
            raise
        finally:
            computed.set()

    async def _choice_steps(self, prompt: int, generation: Generation) -> AsyncIterator[Echo | Piece | Outcome]:
        """The first choice of a prompt, which computes it, tells the echo of all."""
        echo = None if self._plan.echoes is None else self._plan.echoes[prompt]
        async for piece in generation.pieces():
            if echo is not None:
                yield replace(echo, samples=self._leaders[prompt].known)
                echo = None
            yield piece
        outcome = _outcome(generation.end)
        if echo is not None:
            yield replace(echo, samples=self._leaders[prompt].known)
        yield outcome

    async def _start(self, prompt: int, choice: int) -> Generation:
        plan, options = self._plan, self._plan.options
        seed = self._seed if options.seed is None else options.seed
        sampling = replace(options.sampling(seed), seed=choice_seed(seed, choice))
        command = wire.Start(
            session_id=None,
            namespace=self._asker.tenant,
            token_ids=plan.prompts[prompt],
            sampling=sampling,
            max_new_tokens=0 if plan.only_echoes else options.max_tokens,
            stops=list(options.stop_strings),
            ignore_eos=options.ignore_eos,
            cache_salt=plan.cache_salt,
            logprobs_from=0 if plan.echoes is not None and choice == 0 else None,
        )
        return await self._stack.enter_async_context(self._front.generate(command, self._asker))


def _outcome(end: wire.Ended) -> Outcome:
    usage = end.usage
    reason = finish_reason_of(end.reason, end.message)
    return Outcome(reason, end.stop_match, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


# -- in a session


class SessionTurn:
    """One turn of a session, or the answer of one that stands already, of which no log-probabilities are kept.

    `echo`: the new tokens' text, shown with their log-probabilities. Of the history there are none.
    """

    def __init__(
        self, desk: SessionDesk, session_id: str, asker: Asker, body: InnerTurnBody, echo: Echo | None = None
    ) -> None:
        self._run = TurnRun(desk, session_id, asker, body)
        self._echo = echo

    async def enter(self) -> None:
        await self._run.enter()

    async def leave(self) -> None:
        await self._run.leave()

    async def steps(self) -> AsyncIterator[Step]:
        result, echo = self._run.replayed, self._echo
        if result is None:
            async for piece in self._run.pieces():
                if echo is not None:
                    yield 0, replace(echo, ids=self._run.token_ids, samples=self._run.known)
                    echo = None
                yield 0, piece
            result = self._run.result()
        else:
            if echo is not None:
                yield 0, echo
            yield 0, Piece(result.text, result.token_ids, [])
        usage = result.usage
        reason = finish_reason_of(result.finish_reason)
        yield 0, Outcome(reason, result.stop, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
