"""The engine's side of the wire: commands become calls of the session service, events become messages.

Everything here runs on the engine's thread. Knows who may see which session, and which call of the front started which
request; knows no sockets and no text.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from sojourn.api import copies, kv, wire, wire_kv
from sojourn.api.errors import LimitError
from sojourn.api.pace import Pace
from sojourn.api.wire_base import Body
from sojourn.cache.protocol import CacheKey, CacheStatistics, InnerCache
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, ConflictError, NotFoundError
from sojourn.core.ids import RequestId
from sojourn.core.step import TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.engine.events import Event, FinishReason, Notice, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.engine.thread import EngineStoppedError
from sojourn.scheduler.request import RequestState, StopMatcher
from sojourn.sessions.service import SessionClosed, SessionService, TurnParams, UnstoredEvent
from sojourn.sessions.slot import SlotStatistics
from sojourn.sessions.store import StoreError
from sojourn.sessions.values import SessionExistsError

logger = logging.getLogger("sojourn.engine")
SALT_MARK = "\x1f"  # occurs in no tenant's name and in no id
Send = Callable[[wire.Event], None]
StopMatcherFactory = Callable[[Sequence[str], bool], StopMatcher]  # stop strings, and whether special tokens are shown


class Cache(Protocol):
    """What the desk looks at and may flush: `SessionAwareCache`."""

    def statistics(self) -> tuple[CacheStatistics, ...]: ...

    def slot_statistics(self) -> SlotStatistics: ...

    def tier_statistics(self) -> TierStatistics | None: ...

    def copy_out(self, key: CacheKey, tokens: TokenArray) -> KvNames | None: ...

    @property
    def inner(self) -> InnerCache: ...

    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How many sessions may be open, of all tenants and of one, and how many turns of a tenant may wait. None: no bound."""

    total: int | None = None
    tenant: int | None = None
    tenant_waiting: int | None = None


@dataclass(slots=True, eq=False)
class _Running:
    """A request that a call of the front started."""

    call: int
    name: str | None  # the service's, of its session
    num_history: int
    wants_samples: bool
    namespace: str
    request_id: RequestId | None = None
    keep: int | None = None


class EngineDesk:
    """One engine, one front at a time."""

    def __init__(
        self,
        service: SessionService,
        loop: EngineLoop,
        cache: Cache,
        stop_matcher: StopMatcherFactory,
        clock: Clock,
        send: Send,
        limits: "SessionLimits | None" = None,
    ) -> None:
        self._limits = limits or SessionLimits()
        self._service = service
        self._loop = loop
        self._cache = cache
        self._stop_matcher = stop_matcher
        self._clock = clock
        self._send = send
        # open ones by the service's name: namespace and id
        self._sessions = {name: parts_of(name) for name in service.session_ids()}
        self._running: dict[int, _Running] = {}
        self._session_pace, self._turn_pace = Pace(clock), Pace(clock)
        for _ in self._sessions:
            self._session_pace.began()

    # -- requests

    def start(self, call: int, command: wire.Start) -> RequestId:
        """Start a request; its answer goes out before any of its events."""
        self._check_line(command.namespace)
        params = TurnParams(
            sampling=command.sampling,
            max_new_tokens=command.max_new_tokens,
            stop_ids=frozenset(command.stop_ids),
            ignore_eos=command.ignore_eos,
            stop_matcher=self._stop_matcher(command.stops, command.skip_special) if command.stops else None,
            logprobs_from=command.logprobs_from,
        )
        wants_samples = command.sampling.num_logprobs is not None
        salted = f"{command.namespace}{SALT_MARK}{command.cache_salt}" if command.cache_salt else None
        ids = command.token_ids
        if command.session_id is None:
            running = _Running(call, None, 0, wants_samples, command.namespace)
            turn = None
            running.request_id = self._service.submit(ids, params, namespace=salted or command.namespace)
        else:
            name = self._reach(command.session_id, command.namespace)
            before = self._service.summary(name)
            if command.expected_tokens is not None and before.num_tokens != command.expected_tokens:
                raise ConflictError(
                    f"session {command.session_id} has {before.num_tokens} tokens, not {command.expected_tokens}: "
                    "another turn was faster",
                    param="session_id",
                    code="history_changed",
                )
            running = _Running(call, name, before.num_tokens, wants_samples, command.namespace)
            turn = before.num_turns
            if before.num_tokens and ids[:1] == [command.bos_id]:
                ids = ids[1:]
                params = replace(params, logprobs_from=command.logprobs_from and command.logprobs_from - 1)
            running.request_id = self._service.start_turn(name, ids, params, note=command.note, cache_namespace=salted)
        self._running[call] = running
        self._turn_pace.began()
        self.answer(call, wire.Started(turn, running.num_history + len(ids)))
        return running.request_id

    def take(self, call: int, event: Event | EngineStoppedError) -> None:
        """An event of a request, told to the front. The sink of its stream."""
        running = self._running.get(call)
        if running is None or isinstance(event, EngineStoppedError):
            return  # an engine that stopped tells by its exit
        if isinstance(event, TokensEvent):
            ids = [sample.token for sample in event.samples]
            samples = list(event.samples) if running.wants_samples else None
            self._send(wire.Tokens(call, ids, samples, event.cached_tokens, list(event.known)))
            return
        del self._running[call]
        if isinstance(event, UnstoredEvent):
            logger.error("%s", event.message)
        self._turn_pace.ended()
        kept = 0 if event.reason is FinishReason.ABORT else len(event.output_ids)
        self._send(
            wire.Ended(
                call,
                event.reason.value,
                event.usage,
                kept if running.keep is None else min(kept, running.keep),
                event.message,
                event.stop_match,
                event.usage.cache_miss,
                self._pages_held(running.name),
                isinstance(event, UnstoredEvent),
            )
        )

    def _pages_held(self, name: str | None) -> int:
        try:
            return 0 if name is None else self._service.pages_held(name)
        except NotFoundError:  # it was to be closed, and was when this turn ended
            return 0

    def abort_all(self) -> None:
        """The front is gone: nobody waits for what runs."""
        for running in list(self._running.values()):
            self._end(running, undo=True)
            self._turn_pace.ended()
        self._running.clear()

    def _end(self, running: _Running, *, undo: bool) -> bool:
        if running.request_id is None:
            return False
        try:
            if undo:
                self._service.abort_request(running.request_id)
            else:
                self._service.interrupt_request(running.request_id)
        except NotFoundError:  # it has ended by itself, and its last event is on its way
            return False
        return True

    # -- commands

    def obey(self, call: int, command: wire.Command) -> Body:
        """Do it and return the answer, or raise a ClientError with nothing changed."""
        match command:
            case wire.OpenSession():
                name = self._new_name(command.session_id, command.namespace, command.elsewhere)
                self._service.open(
                    name,
                    namespace=command.namespace,
                    idle_timeout_s=command.idle_timeout_s,
                    priority=command.priority,
                )
                self._know(name, command.namespace, command.session_id)
                return self._info(name)
            case wire.CheckOpen():
                self._new_name(command.session_id, command.namespace, command.elsewhere)
                return wire.Done()
            case wire.CloseSession():
                name = self._reach(command.session_id, command.namespace)
                reply = self._service.close(name)
                if not reply.deferred:
                    del self._sessions[name]
                    self._session_pace.ended()
                return wire.Closed(reply.deferred, reply.freed_pages)
            case wire.ShowSession():
                return self._info(self._reach(command.session_id, command.namespace))
            case wire.ListSessions():
                names = [name for name, (space, _) in self._sessions.items() if command.namespace in (None, space)]
                return wire.SessionList([self._info(name) for name in names])
            case wire.ReadTranscript():
                return self._transcript(self._reach(command.session_id, command.namespace))
            case wire.CopySession():
                stored = self._service.copy(self._reach(command.session_id, command.namespace))
                return copies.told(stored, stored.namespace.removeprefix(command.namespace).removeprefix(SALT_MARK))
            case wire.TakeIn():
                return self._take_in(command)
            case wire_kv.KeepKv():
                return kv.keep(self._service, self._cache, self._reach(command.session_id, command.namespace), command)
            case wire_kv.PutKv():
                return kv.put(self._service, self._cache, self._reach(command.session_id, command.namespace), command)
            case wire.Rewind() | wire.Fork():
                return self._branch(command)
            case wire.End():
                running = self._running.get(command.call)
                return wire.Stopped(running is not None and self._end(running, undo=command.undo))
            case wire.Interrupt():
                return self._interrupt(command)
            case wire.ShowPools():
                return wire.Pools(self._pools(), self._unwritten())
            case wire.Flush():
                self._flush()
                return wire.Done()
            case wire.Greet() | wire.Start():
                raise ClientError(f"call {call}: {type(command).__name__} is not answered here")
            case other:
                assert_never(other)

    def answer(self, call: int, body: Body) -> None:
        self._send(wire.Answer(call, wire.encoder.encode(body)))

    def notice(self, notice: Notice) -> None:
        """A session ended by itself: told to the front, and out of reach from now on."""
        if isinstance(notice, SessionClosed):
            namespace, session_id = self._sessions.pop(notice.session_id, ("", notice.session_id))
            self._session_pace.ended()
            self._send(
                wire.SessionEnded(
                    session_id,
                    namespace,
                    notice.why,
                    notice.freed_pages,
                    notice.num_tokens,
                    notice.num_turns,
                )
            )

    def heartbeat(self) -> wire.Heartbeat:
        scheduler, slots = self._loop.scheduler.statistics(), self._cache.slot_statistics()
        loop = self._loop.statistics()
        return wire.Heartbeat(
            at=self._clock(),
            is_busy=self._service.has_work,
            steps=loop.steps,
            running=scheduler.running,
            waiting=scheduler.waiting,
            admissions=scheduler.admissions,
            retractions=scheduler.retractions,
            sessions=len(self._sessions),
            sessions_active=slots.num_active,
            sessions_idle=slots.num_idle,
            sessions_closing=self._service.num_closing,
            demotions=slots.demotions,
            pools=self._pools(),
            retracted_tokens=scheduler.retracted_tokens,
            drafted_tokens=scheduler.drafted,
            accepted_tokens=scheduler.accepted,
            steps_by_phase=list(loop.by_phase),
            waiting_for=list(scheduler.waiting_for),
            disk=self._cache.tier_statistics(),
            sessions_to_copy=slots.num_to_copy,
            kept=self._service.kept(),
        )

    # -- inside

    def _reach(self, session_id: str, namespace: str) -> str:
        """The service's name of a session that is open: another tenant's does not exist."""
        name = name_of(session_id, namespace)
        if name not in self._sessions:
            raise NotFoundError(f"no session {session_id} is open", param="session_id", code="session_not_found")
        return name

    def _new_name(self, session_id: str, namespace: str, elsewhere: wire.Elsewhere) -> str:
        """The service's name of a session to be opened. Refused if it is open, or as many are as may be."""
        name = name_of(session_id, namespace)
        if name in self._sessions:
            raise SessionExistsError(session_id)
        self._check_room(namespace, elsewhere)
        return name

    def _check_room(self, namespace: str, elsewhere: wire.Elsewhere) -> None:
        """Raise LimitError when as many sessions are open as may be."""
        total = len(self._sessions) + elsewhere.total
        most, bound = self._limits.total, self._limits.tenant
        if most is not None and total >= most:
            raise self._full(f"{total} sessions are open, the bound of this server")
        own = elsewhere.own + sum(owner == namespace for owner, _ in self._sessions.values()) if bound else 0
        if bound is not None and own >= bound:
            raise self._full(f"{own} sessions are open, the bound of one tenant is {bound}")

    def _full(self, message: str) -> LimitError:
        wait_s = self._session_pace.turn_away()
        return LimitError(message, param="session_id", code="too_many_sessions", retry_after_s=wait_s)

    def _check_line(self, namespace: str) -> None:
        """Raise LimitError when as many turns of this tenant wait for their first step as may."""
        bound = self._limits.tenant_waiting
        if bound is None:
            return
        ids = [running.request_id for running in self._running.values() if running.namespace == namespace]
        requests = [self._loop.scheduler.get(request_id) for request_id in ids if request_id is not None]
        waiting = sum(request is not None and request.state is RequestState.WAITING for request in requests)
        if waiting >= bound:
            raise LimitError(
                f"{waiting} turns of this tenant wait already, the bound is {bound}",
                param="tenant",
                code="too_many_waiting",
                retry_after_s=self._turn_pace.turn_away(),
            )

    def _know(self, name: str, namespace: str, session_id: str) -> None:
        """A session of that name is open."""
        self._sessions[name] = namespace, session_id
        self._session_pace.began()

    def _info(self, name: str) -> wire.SessionInfo:
        summary = self._service.summary(name)
        pages = self._service.pages_by_pool(name)
        namespace, session_id = self._sessions[name]
        return wire.SessionInfo(
            session_id,
            namespace,
            summary.state.value,
            summary.num_tokens,
            summary.num_turns,
            summary.idle_timeout_s,
            [wire.HeldPages(pool.name.lower(), own, leased) for pool, (own, leased) in pages.items()],
            copies.killed(summary.killed),
            summary.priority,
        )

    def _transcript(self, name: str) -> wire.Transcript:
        view = self._service.history(name)
        return wire.Transcript(
            view.state.value,
            view.token_ids.tolist(),
            [wire.TurnOfTranscript(t.start, t.output_start, t.end, t.reason, t.note) for t in view.turns],
        )

    def _take_in(self, command: wire.TakeIn) -> wire.SessionInfo:
        name = self._new_name(command.session_id, command.namespace, command.elsewhere)
        salt = command.copy.cache_salt
        namespace = f"{command.namespace}{SALT_MARK}{salt}" if salt else command.namespace
        self._service.take_in(copies.heard(command.copy, name, namespace))
        self._know(name, command.namespace, command.session_id)
        return self._info(name)

    def _branch(self, command: wire.Rewind | wire.Fork) -> wire.SessionInfo:
        name = self._reach(command.session_id, command.namespace)
        length = command.length if command.turns is None else self._end_of_turns(name, command.turns, command.length)
        if isinstance(command, wire.Rewind):
            self._service.rewind(name, length=length)
            return self._info(name)
        new = self._new_name(command.new_id, command.namespace, command.elsewhere)
        self._service.fork(name, new, length=length)
        self._know(new, command.namespace, command.new_id)
        return self._info(new)

    def _end_of_turns(self, name: str, turns: int, length: int | None) -> int:
        if length is not None:
            raise ClientError("give one of turns and length, not both", param="length")
        records = self._service.history(name).turns
        if not 0 <= turns <= len(records):
            raise ClientError(f"turns is {turns}: the session has {len(records)}", param="turns")
        return records[turns - 1].end if turns else 0

    def _interrupt(self, command: wire.Interrupt) -> wire.Stopped:
        name = self._reach(command.session_id, command.namespace)
        running = next((r for r in self._running.values() if r.name == name and r.keep is None), None)
        if running is None:
            return wire.Stopped(False)
        stopped = self._end(running, undo=command.keep == 0)
        if stopped and command.keep:
            self._cut(name, running, command.keep)
        return wire.Stopped(stopped)

    def _cut(self, name: str, running: _Running, keep: int) -> None:
        """Of the answer of a turn that was interrupted, `keep` tokens stand; the turn's end, still to be told, says so."""
        last = self._service.history(name).turns[-1:]
        if last and last[0].end > last[0].output_start + keep > running.num_history:
            try:
                self._service.rewind(name, length=last[0].output_start + keep)
            except StoreError as error:
                raise StoreError(f"the turn has ended, and all that it said stands: {error}") from error
        running.keep = keep

    def _flush(self) -> None:
        if self._service.has_work:
            raise ConflictError("requests are running or waiting; the cache is not flushed", code="busy")
        self._cache.flush()

    def _unwritten(self) -> wire.Unwritten | None:
        tier = self._cache.tier_statistics()
        return None if tier is None else wire.Unwritten(self._cache.slot_statistics().num_to_copy, tier.store.unwritten)

    def _pools(self) -> list[wire.PoolPages]:
        return [
            wire.PoolPages(
                p.pool.name.lower(),
                p.total,
                p.free,
                p.fenced,
                p.reserved,
                p.tree,
                p.running,
                p.idle,
                p.evictable,
                p.evicted,
                p.flushed,
            )
            for p in self._cache.statistics()
        ]


def name_of(session_id: str, namespace: str) -> str:
    """What the service calls a session: ids are a tenant's own, and the service knows no tenants."""
    return f"{namespace}{SALT_MARK}{session_id}" if namespace else session_id


def parts_of(name: str) -> tuple[str, str]:
    """Namespace and id of a session that the service calls so: the inverse of `name_of`."""
    namespace, mark, session_id = name.partition(SALT_MARK)
    return (namespace, session_id) if mark else ("", name)
