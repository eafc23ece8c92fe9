"""Both ends of the wire, without HTTP: the front's link and the engine's server, over a back end that notices wrong pages."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.support.fake_backend import expected_tokens
from tests.support.session_world import SessionWorld
from tests.support.ticks import tick
from tests.support.world import ManualClock, WorldConfig

from sojourn.api import wire
from sojourn.api.desk import EngineDesk, SessionLimits
from sojourn.api.engine_link import EngineDownError, EngineLink, Feed
from sojourn.api.engine_server import EngineServer, Outbox
from sojourn.api.errors import LimitError
from sojourn.core.errors import ClientError, ConflictError, CorruptionError, NotFoundError
from sojourn.core.step import SamplingParams
from sojourn.engine.thread import EngineThread
from sojourn.scheduler.request import StopMatcher
from sojourn.sessions.service import SessionService

CARD = wire.ModelCard("m", "m", "{}", "{}", 97, 512, 16, 1, "x", "f16", 1, 4, ["full"], [1])
GUARD_S = 60.0


class Never:
    def feed(self, token_id: int) -> str | None:
        return None


def never(stops: object, skip_special: bool) -> StopMatcher:
    return Never()


class EngineHere:
    """An engine of the small world behind a socket, in threads of this process."""

    def __init__(
        self,
        address: str,
        name: str = "e1",
        limits: SessionLimits | None = None,
        *,
        card: wire.ModelCard = CARD,
        num_pages: int = 200,
        depth: int = 0,
    ) -> None:
        self.world = SessionWorld(WorldConfig(page_size=16, num_pages=num_pages, context=512), depth=depth)
        self._outbox = outbox = Outbox()
        self.desk = EngineDesk(
            self.world.service, self.world.world.loop, self.world.slots, never, time.monotonic, outbox.put, limits
        )
        self.thread: EngineThread[SessionService] = EngineThread(
            self.world.service, listener=self.desk.notice, told=outbox.ring
        )
        self.server = EngineServer(
            address, self.thread, self.desk, outbox, engine_id=name, card=card, clock=time.monotonic
        )
        self.thread.start()
        self._runner = Thread(target=self.server.run)
        self._runner.start()

    def close(self) -> None:
        self.server.stop()
        self.join()
        self.thread.stop()
        self._outbox.close()

    def join(self) -> None:
        self._runner.join(GUARD_S)
        assert not self._runner.is_alive()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The engine's thread waits inside the block, between two steps."""
        gate, is_held = Event(), Event()

        def wait(service: SessionService) -> None:
            is_held.set()
            gate.wait(GUARD_S)

        self.thread.call(wait)
        is_held.wait(GUARD_S)
        yield
        gate.set()


def story(tmp_path: Path, tell: Callable[[EngineLink, EngineHere], Awaitable[None]]) -> None:
    address = f"ipc://{tmp_path}/engine"
    engine = EngineHere(address)

    async def run() -> None:
        async with asyncio.timeout(GUARD_S):
            await with_link(address, lambda link: tell(link, engine))

    try:
        asyncio.run(run())
    finally:
        engine.close()


async def with_link(address: str, tell: Callable[[EngineLink], Awaitable[None]]) -> None:
    link = EngineLink(address, time.monotonic)
    running = asyncio.create_task(link.run())
    await link.up.wait()
    try:
        await tell(link)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def start_of(prompt: list[int], count: int, session_id: str | None = None, **others: int) -> wire.Start:
    return wire.Start(session_id, "", prompt, SamplingParams(), count, **others)  # type: ignore[arg-type]


async def read(feed: Feed) -> list[int]:
    ids: list[int] = []
    while (taken := await feed.take()) is not None:
        ids += taken[0]
    return ids


async def ask_and_check(link: EngineLink) -> None:
    started, feed = await link.start(start_of([1, 2, 3], 20))
    assert started == wire.Started(None, 3)
    assert await read(feed) == expected_tokens([1, 2, 3], 20)
    assert feed.end is not None
    assert (feed.end.reason, feed.end.kept) == ("length", 20)


def test_a_request_brings_its_tokens_in_order_and_one_end(tmp_path: Path) -> None:
    async def tell(link: EngineLink, engine: EngineHere) -> None:
        await ask_and_check(link)
        await asyncio.gather(*[ask_and_check(link) for _ in range(20)])

    story(tmp_path, tell)


def test_refusals_say_which_parameter_and_leave_nothing(tmp_path: Path) -> None:
    async def tell(link: EngineLink, engine: EngineHere) -> None:
        with pytest.raises(ClientError, match=r"prompt\[0\]") as refusal:
            await link.start(start_of([999], 5))
        assert refusal.value.param == "prompt"
        with pytest.raises(NotFoundError):
            await link.ask(wire.ShowSession("nobody", ""), wire.SessionInfo)
        opened = await link.ask(wire.OpenSession("s", "", None), wire.SessionInfo)
        assert (opened.num_tokens, opened.state) == (0, "idle")
        with pytest.raises(ConflictError):
            await link.ask(wire.OpenSession("s", "", None), wire.SessionInfo)
        with pytest.raises(NotFoundError):
            await link.ask(wire.ShowSession("s", "other"), wire.SessionInfo)
        with pytest.raises(ConflictError, match="another turn was faster") as changed:
            await link.start(start_of([1], 5, "s", expected_tokens=7))
        assert changed.value.code == "history_changed"
        await ask_and_check(link)

    story(tmp_path, tell)


def test_ends_are_exact(tmp_path: Path) -> None:
    async def tell(link: EngineLink, engine: EngineHere) -> None:
        await link.ask(wire.OpenSession("s", "", None), wire.SessionInfo)
        with engine.held():
            asking = [asyncio.ensure_future(link.start(start_of([1, 2], 400, "s")))]
            asking += [asyncio.ensure_future(link.start(start_of([5], 30)))]
            await tick()
        (_, undone), (_, other) = await asyncio.gather(*asking)
        link.end(undone.call, undo=True)
        await read(undone)
        assert undone.end is not None
        assert (undone.end.reason, undone.end.kept) == ("abort", 0)
        assert await read(other) == expected_tokens([5], 30)
        assert (await link.ask(wire.ShowSession("s", ""), wire.SessionInfo)).num_tokens == 0
        assert (await link.ask(wire.End(undone.call, True), wire.Stopped)).stopped is False

    story(tmp_path, tell)


def test_a_reader_that_is_slow_finds_everything_merged(tmp_path: Path) -> None:
    async def tell(link: EngineLink, engine: EngineHere) -> None:
        _, feed = await link.start(start_of([4, 4], 300))
        await ask_and_check(link)
        while feed.end is None:
            await ask_and_check(link)
        first = await feed.take()
        assert first is not None
        assert first[0] == expected_tokens([4, 4], 300)
        assert await feed.take() is None

    story(tmp_path, tell)


def test_a_front_that_goes_away_leaves_nothing_running(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    engine = EngineHere(address)

    async def first(link: EngineLink) -> None:
        await link.ask(wire.OpenSession("s", "", None), wire.SessionInfo)
        with engine.held():
            asking = asyncio.ensure_future(link.start(start_of([1, 2], 450, "s")))
            await tick()
        await asking

    async def second(link: EngineLink) -> None:
        while (await link.ask(wire.ShowSession("s", ""), wire.SessionInfo)).state != "idle":
            pass
        info = await link.ask(wire.ShowSession("s", ""), wire.SessionInfo)
        assert info.num_tokens in (0, 452), "undone, unless it was faster than the news"
        await ask_and_check(link)

    async def run() -> None:
        async with asyncio.timeout(GUARD_S):
            await with_link(address, first)
            await with_link(address, second)

    try:
        asyncio.run(run())
    finally:
        engine.close()


def test_an_engine_that_goes_away_fails_what_is_open_and_the_next_one_is_found(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    engines = [EngineHere(address)]

    async def tell(link: EngineLink) -> None:
        with engines[0].held():
            asking = asyncio.ensure_future(link.ask(wire.ShowPools(), wire.Pools))
            await tick()
            engines[0].server.stop()
            with pytest.raises(EngineDownError):
                await asking
        engines.pop(0).close()
        assert not link.is_up
        with pytest.raises(EngineDownError):
            await link.ask(wire.ShowPools(), wire.Pools)
        engines.append(EngineHere(address, "e2"))
        await link.up.wait()
        assert link.welcome is not None
        assert link.welcome.engine == "e2"
        await ask_and_check(link)

    async def run() -> None:
        async with asyncio.timeout(GUARD_S):
            await with_link(address, tell)

    try:
        asyncio.run(run())
    finally:
        for engine in engines:
            engine.close()


def test_a_broken_law_stops_the_engine_with_its_report(tmp_path: Path) -> None:
    async def tell(link: EngineLink, engine: EngineHere) -> None:
        def corrupt(service: SessionService) -> None:
            raise CorruptionError("page 7 has two owners")

        _, feed = await link.start(start_of([1], 400))
        engine.thread.call(corrupt)
        with pytest.raises(EngineDownError):
            await read(feed)
        engine.join()
        assert engine.thread.stopped is not None
        assert "page 7 has two owners" in engine.thread.stopped.report
        assert "pool FULL" in engine.thread.stopped.report

    story(tmp_path, tell)


def test_what_a_lost_front_had_running_does_not_make_the_next_wait_longer() -> None:
    world, clock = SessionWorld(WorldConfig(page_size=16, num_pages=200, context=512)), ManualClock()
    bound = SessionLimits(tenant_waiting=1)
    desk = EngineDesk(world.service, world.world.loop, world.slots, never, clock, lambda event: None, bound)
    desk.start(1, start_of([1], 5))
    desk.abort_all()
    clock.now += 10_000
    desk.start(2, start_of([1], 5))
    with pytest.raises(LimitError, match="wait already") as refusal:
        desk.start(3, start_of([1], 5))
    assert refusal.value.retry_after_s == 1


def test_sessions_have_a_bound_for_all_and_for_one_tenant(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/engine"
    engine = EngineHere(address, limits=SessionLimits(total=3, tenant=2))

    async def tell(link: EngineLink) -> None:
        for name in ("a1", "a2"):
            await link.ask(wire.OpenSession(name, "a", None), wire.SessionInfo)
        with pytest.raises(ClientError, match="one tenant") as refusal:
            await link.ask(wire.OpenSession("a3", "a", None), wire.SessionInfo)
        assert refusal.value.status == 429
        with pytest.raises(ClientError, match="one tenant"):
            await link.ask(wire.Fork("a1", "a", "a3", None, None), wire.SessionInfo)
        await link.ask(wire.OpenSession("b1", "b", None), wire.SessionInfo)
        with pytest.raises(ClientError, match="this server"):
            await link.ask(wire.OpenSession("b2", "b", None), wire.SessionInfo)
        await link.ask(wire.CloseSession("b1", "b"), wire.Closed)
        await link.ask(wire.CheckOpen("b1", "b", wire.Elsewhere()), wire.Done)
        with pytest.raises(ClientError, match="3 sessions are open, the bound of this server"):
            await link.ask(wire.CheckOpen("b1", "b", wire.Elsewhere(1)), wire.Done)
        with pytest.raises(ConflictError, match="open already"):
            await link.ask(wire.CheckOpen("a1", "a"), wire.Done)
        with pytest.raises(ClientError, match="this server"):
            await link.ask(wire.OpenSession("b1", "b", None, elsewhere=wire.Elsewhere(1, 1)), wire.SessionInfo)
        with pytest.raises(ClientError, match="one tenant is 2"):
            await link.ask(wire.CheckOpen("b1", "b", wire.Elsewhere(0, 2)), wire.Done)
        await link.ask(wire.OpenSession("b1", "b", None), wire.SessionInfo)
        await link.ask(wire.CloseSession("a1", "a"), wire.Closed)
        await link.ask(wire.OpenSession("a3", "a", None), wire.SessionInfo)

    async def run() -> None:
        async with asyncio.timeout(GUARD_S):
            await with_link(address, tell)

    try:
        asyncio.run(run())
    finally:
        engine.close()
