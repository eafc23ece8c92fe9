"""The front: what every route shares. The engine's link, the model's text side, who may ask, and how much is running.

Owns the count of live requests (its bound, and what a drain waits for). Surfaces run turns through `generate`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sojourn.api import account, wire
from sojourn.api.account import Asker, Tracer
from sojourn.api.engine_link import EngineDownError, EngineLink
from sojourn.api.errors import DrainingError, LimitError
from sojourn.api.generation import Generation
from sojourn.api.lanes import Lanes
from sojourn.api.metrics import Metrics
from sojourn.api.pace import Pace
from sojourn.api.settings import FrontSettings, FrontWorld
from sojourn.api.text.glue import Glue
from sojourn.api.text.stop_strings import TextStream
from sojourn.models.chat_template import ChatTemplate
from sojourn.models.text_config import TextConfig
from sojourn.models.tokenizer import Tokenizer

CUT_OFF_S = 1.0  # for the last words to those whose requests a shutdown cuts off


class TextSide:
    """The model of the engine, as text."""

    def __init__(self, card: wire.ModelCard, world: FrontWorld) -> None:
        config = TextConfig.from_json(card.text_json)
        self.card = card
        self.tokenizer = Tokenizer(card.tokenizer_json, config)
        self.glue = Glue(self.tokenizer, ChatTemplate.of(config, world.date))
        self.eos_ids = frozenset(config.eos_ids)


class Front:
    """One per process."""

    def __init__(self, settings: FrontSettings, world: FrontWorld, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self.settings = settings
        self.world = world
        self.link = EngineLink(settings.address, world.clock)
        self.link.on_welcome = self._take_card
        self._pace = Pace(world.clock)  # of all requests
        self._paces: dict[str, Pace] = {}  # of a tenant's
        self.lanes = Lanes(settings.session_requests_max, self._pace)
        self.started_at = world.now()
        self.on_new_engine: Callable[[], None] = lambda: None
        self.elsewhere: Callable[[str], wire.Elsewhere] = lambda namespace: wire.Elsewhere()  # what else is open here
        self.is_draining = False
        self.fault: BaseException | None = None  # ours: a front that cannot hear its engine is of no use
        self.on_fault: Callable[[], None] = lambda: None
        self.metrics = Metrics(
            self.link,
            lambda: self.is_ready,
            settings.version,
            settings.metrics_compat,
            num_in_lanes=lambda: self.lanes.num_waiting,
        )
        self._text: TextSide | None = None
        self._live: Counter[str] = Counter()  # requests by tenant
        self._idle = asyncio.Event()
        self._idle.set()
        self.probing = asyncio.Lock()  # probes need no key, so the engine has one at a time

    @property
    def text(self) -> TextSide:
        if self._text is None:
            raise EngineDownError("the model is not loaded yet")
        return self._text

    @property
    def num_live(self) -> int:
        return self._live.total()

    @property
    def is_alive(self) -> bool:
        """The engine's thread answers, and advances while it has work. One that is being started has its time, too."""
        now, stale, link = self.world.clock(), self.settings.engine_stale_s, self.link
        if not link.is_up:
            return now - link.heard_at < self.settings.engine_start_s
        return now - link.heard_at < stale and now - link.progress_at < stale

    @property
    def is_ready(self) -> bool:
        return self.link.is_up and not self.is_draining and self.is_alive

    def _take_card(self, welcome: wire.Welcome) -> None:
        if self._text is None or self._text.card != welcome.card:
            self._text = TextSide(welcome.card, self.world)
        self.on_new_engine()

    def link_ended(self, link: "asyncio.Task[None]") -> None:
        """The link's task: it ends when it is cancelled, or by a fault."""
        if not link.cancelled() and (error := link.exception()) is not None:
            self.fault = error
            self.on_fault()

    # -- work

    def check_open(self) -> None:
        """Raise DrainingError once the server is shutting down."""
        if self.is_draining:
            raise DrainingError("the server is shutting down; it takes no new work")

    @asynccontextmanager
    async def work(self, tenant: str) -> AsyncIterator[None]:
        """A request is at work inside: counted, bounded, and waited for by a drain."""
        self.check_open()
        paces = self._pace, self._paces.setdefault(tenant, Pace(self.world.clock))
        self._check_bounds(tenant, *paces)
        for pace in paces:
            pace.began()
        self._live[tenant] += 1
        self._idle.clear()
        try:
            yield
        finally:
            for pace in paces:
                pace.ended()
            self._live[tenant] -= 1
            if not self._live[tenant]:
                del self._live[tenant]
            if not self._live:
                self._idle.set()

    def _check_bounds(self, tenant: str, pace: Pace, own_pace: Pace) -> None:
        """Raise LimitError when as many requests run or wait as may, of all tenants or of this one."""
        bound, own_bound = self.settings.requests_max, self.settings.tenant_requests_max
        if self._live[tenant] >= own_bound:
            raise LimitError(
                f"{self._live[tenant]} requests of this tenant are running or waiting, the bound is {own_bound}",
                param="tenant",
                code="too_many_requests",
                retry_after_s=own_pace.turn_away(),
            )
        if self.num_live >= bound:
            raise LimitError(
                f"{self.num_live} requests are running or waiting, the bound of this server is {bound}",
                code="too_many_requests",
                retry_after_s=pace.turn_away(),
            )

    @asynccontextmanager
    async def generate(
        self, command: wire.Start, asker: Asker, text: TextStream | None = None
    ) -> AsyncIterator[Generation]:
        """Start a request; leaving the block undoes it, unless it has ended. Its end is told once."""
        generation = await Generation.start(self.link, command, self.text.tokenizer, text)
        try:
            yield generation
        finally:
            generation.leave()
            if generation.has_ended:
                account.ended(self.metrics, asker, command, generation.end)
                if self._tracer is not None:
                    self._tracer.ended(asker, command, generation.end, self.text.card.name)
            else:  # some leave by a stack that is told of no exception: what ended it is asked of the feed
                account.left(self.metrics, asker, command, "engine" if generation.has_failed else "disconnect")

    async def drain(self) -> bool:
        """Take no new work and wait for what runs, up to the shutdown timeout. What still runs then is told that it is
        cut off, and has a moment to say so to its client. False: something was.
        """
        self.is_draining = True
        if await self._is_idle_within(self.settings.shutdown_timeout_s):
            return True
        self.link.give_up("the server was shut down before this had ended")
        await self._is_idle_within(CUT_OFF_S)
        return False

    async def _is_idle_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
