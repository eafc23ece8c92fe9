"""Sessions over the small world: the service, the cache that keeps their KV, and what each turn was told."""

from collections.abc import Sequence

from sojourn.core.ids import RequestId
from sojourn.core.tier import PageStore
from sojourn.engine.events import Event, FinishedEvent, Notice, TokensEvent
from sojourn.sessions.recorder import Recorder
from sojourn.sessions.service import ServiceConfig, SessionClosed, SessionService, TurnParams
from sojourn.sessions.slots import SessionAwareCache
from sojourn.sessions.store import NoStore, SessionStore
from tests.support.draft_models import draft_pool
from tests.support.fake_backend import VOCAB_SIZE, expected_completion
from tests.support.world import Record, World, WorldConfig, check_all_free, check_identity


class SessionWorld:
    """`step` and `run` turn the service's crank; `records` holds what was told, by request."""

    def __init__(
        self,
        config: WorldConfig,
        *,
        eos_ids: frozenset[int] = frozenset(),
        idle_timeout_s: float | None = None,
        depth: int = 0,
        publishes: bool = True,
        store: SessionStore | None = None,
        logs_tokens: bool = False,
        bytes_max: int | None = None,
        idle_max_s: float | None = None,
        pages: PageStore | None = None,
    ) -> None:
        drafts = draft_pool(config.page_size, config.draft_pages)
        self.world = World(
            config,
            lambda inner: SessionAwareCache(inner, publishes=publishes, drafts=drafts),
            depth,
            store=pages,
        )
        slots = self.world.cache
        assert isinstance(slots, SessionAwareCache)
        self.slots = slots
        self.clock = self.world.clock
        self.backend = self.world.backend
        self._ids = 0
        self.service = SessionService(
            self.world.loop,
            slots,
            ServiceConfig(VOCAB_SIZE, config.context, eos_ids, idle_timeout_s, idle_max_s),
            clock=self.clock,
            new_id=self._new_id,
            recorder=Recorder(store or NoStore(), self.clock, logs_tokens=logs_tokens, bytes_max=bytes_max),
        )
        self.records: dict[RequestId, Record] = {}
        self.closed: list[SessionClosed] = []

    def _new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def turn(self, session_id: str, new_ids: Sequence[int], params: TurnParams | int = 8) -> Record:
        """Start a turn of at most `params` tokens; its record fills as the world runs."""
        request_id = self.service.start_turn(session_id, new_ids, _params(params))
        return self.records.setdefault(request_id, Record())

    def submit(self, prompt: Sequence[int], params: TurnParams | int = 8, namespace: str = "") -> Record:
        request_id = self.service.submit(prompt, _params(params), namespace=namespace)
        return self.records.setdefault(request_id, Record())

    def history(self, session_id: str) -> list[int]:
        return [int(token) for token in self.service.history(session_id).token_ids]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for event in self.service.step():
                self._take(event)

    def run(self, steps_max: int = 5000) -> None:
        """Until nothing is left to do."""
        for _ in range(steps_max):
            if not self.service.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {steps_max} steps: {self.world.scheduler.statistics()}")

    def run_turn(self, session_id: str, new_ids: Sequence[int], params: TurnParams | int = 8) -> FinishedEvent:
        """A whole turn, checked against an undisturbed run over the same tokens."""
        prompt = [*self.history(session_id), *new_ids]
        record = self.turn(session_id, new_ids, params)
        self.run()
        asked = _params(params)
        count = self.world.config.context - len(prompt)
        expected = expected_completion(
            prompt, min(count, asked.max_new_tokens or count), asked.stop_ids, asked.sampling
        )
        assert record.tokens == expected
        assert self.history(session_id) == [*prompt, *expected]
        assert record.end is not None
        assert record.end.usage.prompt_tokens == len(prompt)
        return record.end

    def close_all(self) -> None:
        """Every session closed and everything flushed: every page is back."""
        self.run()
        for session_id in self.service.session_ids():
            assert not self.service.close(session_id).deferred
        check_identity(self.world.cache)
        check_all_free(self.world.cache)

    def _take(self, event: Event | Notice) -> None:
        if isinstance(event, TokensEvent | FinishedEvent):
            self.records.setdefault(event.request_id, Record()).take(event)
        else:
            assert isinstance(event, SessionClosed)
            self.closed.append(event)


def _params(params: TurnParams | int) -> TurnParams:
    return TurnParams(max_new_tokens=params) if isinstance(params, int) else params
