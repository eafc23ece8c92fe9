"""A deterministic world: the real bookkeeping over a fake device, with steps in flight and drafts. Knows no scheduler."""

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from sojourn.audit.census import census
from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, PrefixMatch, Verdict
from sojourn.cache.radix import RadixCache
from sojourn.cache.release import release_kv_cache
from sojourn.core.ids import NULL_PAGE, AccountId, RequestId, StepId
from sojourn.core.step import PageArray, Pool, TokenArray
from sojourn.pages.accounts import FENCED
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.sessions.slots import SessionAwareCache
from tests.sim.device import FakeDevice, Job
from tests.sim.follower import Follower, Following

ROWS = 8


@dataclass(frozen=True)
class WorldConfig:
    page_size: int
    window: int  # 0: one pool
    full_pages: int  # usable ones
    swa_pages: int
    chunk: int
    context: int
    cache: str = "radix"
    publishes: bool = True
    depth: int = 2  # steps in flight at most
    alphabet: int = 2
    draft_pages: int = 0  # usable ones of a draft model; 0: there is none


@dataclass(eq=False)
class Run:
    """A request that runs or waits after retraction."""

    cached: CacheRequest
    label: str | None  # its session
    history_len: int  # tokens of finished turns when it began
    row: int = -1
    launched: int = 0
    last_commit_from: int = 0
    read: int = 0  # by the draft model, once the steps in flight are over
    is_over: bool = False
    is_waiting: bool = False


@dataclass(eq=False)
class Flight:
    step: StepId
    run: Run
    epoch: int
    accepted: int  # length that stands once the step is over
    job: Job
    account: AccountId
    touched: list[PageArray]  # per pool, the pages it may read or write
    following: Following | None  # the draft model's share


@dataclass(eq=False)
class Session:
    name: str
    namespace: str
    history: TokenArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    run: Run | None = None
    closing: bool = False


class World:
    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        layout = PoolLayout(config.page_size, config.window)
        self.totals = (config.full_pages + NUM_RESERVED, config.swa_pages + NUM_RESERVED)[: layout.num_pools]
        self.book = HoldingBook(layout, self.totals)
        self.radix = RadixCache(self.book) if config.cache == "radix" else None
        self.follower = Follower(config.draft_pages, config.page_size, ROWS, config.context + 64)
        self.cache = SessionAwareCache(
            self.radix or NoneCache(self.book), publishes=config.publishes, drafts=self.follower.pool
        )
        self.device = FakeDevice(self.totals, config.page_size, config.window, ROWS, config.context + 64)
        self.rows = list(range(ROWS))
        self.running: list[Run] = []
        self.waiting: list[Run] = []
        self.sessions: dict[str, Session] = {}
        self.flights: deque[Flight] = deque()
        self.epochs: Counter[int] = Counter()
        self.next_step = 1
        self.count = 0
        self.marks: Counter[str] = Counter()

    # -- arrivals
    def open(self, namespace: str = "") -> Session:
        self.count += 1
        session = Session(f"s{self.count}", namespace)
        self.sessions[session.name] = session
        return session

    def start(self, new: TokenArray, session: Session | None = None, namespace: str = "") -> Run | None:
        """A plain request, or a turn. None: pages are short, and nothing changed."""
        history = session.history if session else np.zeros(0, dtype=np.int32)
        prompt = np.concatenate((history, new)).astype(np.int32)
        self.count += 1
        key = CacheKey(session.namespace, session.name) if session else CacheKey(namespace)
        tokens = np.zeros(self.config.context + 64, dtype=np.int32)
        tokens[: len(prompt)] = prompt
        cached = CacheRequest(RequestId(f"r{self.count}"), key, len(prompt), tokens, len(prompt))
        if self.count % 5 == 0:  # it must compute its prompt from here on, as for log-probabilities of it
            cached.prefix_max = max(len(history) - 1, self.count * 7 % len(prompt))
        run = Run(cached, session.name if session else None, len(history))
        if not self._admit(run):
            return None
        if session:
            session.run = run
        return run

    def readmit(self, run: Run) -> bool:
        if not self._admit(run):
            return False
        self.waiting.remove(run)
        run.is_waiting = False
        self.marks["readmissions"] += 1
        return True

    def _admit(self, run: Run) -> bool:
        """Admission is what match_prefix said, or changes nothing that anyone could see."""
        cached = run.cached
        match = self.cache.match_prefix(cached.key, cached.reusable)
        assert match.prefix_len <= cached.num_tokens - 1
        if cached.prefix_max is not None:
            assert match.prefix_len <= cached.prefix_max
            self.marks["capped"] += match.prefix_len < self.cache.match_prefix(cached.key, cached.known).prefix_len
        length = min(cached.num_tokens, match.prefix_len + self.config.chunk)
        if not self.rows:
            return False
        before = [ledger.owners.copy() for ledger in self.book.ledgers]
        if not self.cache.admit(cached, length):
            assert cached.holding is None
            if not self.flights:
                for ledger, owners in zip(self.book.ledgers, before, strict=True):
                    assert np.array_equal(ledger.owners, owners), "a refused admission moved pages"
            assert self.running or self.flights, "nothing runs, and a request that fits the pool is refused"
            self.marks["refusals"] += 1
            return False
        assert cached.prefix_len == match.prefix_len
        assert cached.holding is not None
        assert cached.holding.kv_committed_len == match.prefix_len
        self.marks[f"match {match.source}"] += 1
        run.row = self.rows.pop()
        run.launched = run.last_commit_from = match.prefix_len
        run.read = cached.draft_len
        self.marks["draft resumes"] += run.read > 0
        self.epochs[id(run)] += 1
        self.running.append(run)
        return True

    # -- steps
    def launch(self, run: Run, width: int, drafts: int, accepted: int, early: bool) -> bool:
        """One step of `run`: up to `width` tokens, or one and `drafts` of which `accepted` are right."""
        cached, start = run.cached, run.launched
        if start + max(width, 1 + drafts) > self.config.context:
            return False
        self._ensure_text(cached, start + 1)
        if start + 1 < cached.num_tokens:  # prefill
            end = standing = min(start + width, cached.num_tokens)
        else:
            end, standing = start + 1 + drafts, start + 1 + accepted
            self._ensure_text(cached, standing)
        slid_to = self._window_from(run)
        while not self.cache.grow(cached, end):
            if self.flights:
                return False
            victim = self.running[-1]
            assert len(self.running) > 1, "alone, and it does not fit"
            self.retract(victim)
            if victim is run:
                return False
        self.marks["slides"] += self._window_from(run) > slid_to
        step = StepId(self.next_step)
        self.next_step += 1
        text = cached.tokens[:standing] + self._salt(cached.key)
        tokens = np.concatenate((text[start:], np.full(end - standing, -7, dtype=np.int32)))
        edits = self.cache.take_edits(cached)
        job = Job(run.row, start, tokens, tuple(edit for edit in edits if edit.pool is not Pool.DRAFT), text)
        reach = range(run.read, min(standing, run.read + step * 7 % (2 * self.config.chunk + 2)))
        following = self.follower.follow(cached, run.row, cached.known + self._salt(cached.key), reach, edits)
        self.cache.launch(step)
        holding = cached.holding
        assert holding is not None
        touched = [pages.pages[pages.pages != NULL_PAGE] for pages in holding.lists]
        epoch = self.epochs[id(run)]
        self.flights.append(Flight(step, run, epoch, standing, job, holding.account, touched, following))
        run.launched = standing
        run.read = run.read if following is None else following.end
        if early:
            self._run_jobs(len(self.flights))
        while len(self.flights) > self.config.depth:
            self.retire()
        return True

    def retire(self) -> None:
        self._run_jobs(1)
        flight = self.flights.popleft()
        run = flight.run
        if any(ledger.num_fenced for ledger in self.book.ledgers):
            self.marks["fences"] += 1
        self.cache.retire(flight.step)
        if run.is_over or self.epochs[id(run)] != flight.epoch:
            self.marks["zombies"] += 1
            return
        holding = run.cached.holding
        assert holding is not None
        run.last_commit_from = holding.kv_committed_len
        self.cache.commit(run.cached, flight.accepted)
        if flight.following is not None:
            self.cache.commit_draft(run.cached, flight.following.end)

    def _salt(self, key: CacheKey) -> int:
        """KV depends on the namespace too (an adapter, say), so that of another would be read as wrong."""
        return 1000 * int(key.namespace[1:] or 0) if key.namespace.startswith("n") else 0

    def _window_from(self, run: Run) -> int:
        """How far the window pool has let go; rises when it slides."""
        holding = run.cached.holding
        assert holding is not None
        return sum(pages.live_from + pages.swept for pages in holding.lists[1:])

    def _run_jobs(self, count: int) -> None:
        """Up to `count` of the oldest steps have run. A step reads as it runs, whatever has been decided meanwhile."""
        for flight in list(self.flights)[:count]:
            if not flight.job.has_run:
                self.device.run(flight.job)
                if flight.following is not None:
                    self.follower.device.run(flight.following.job)

    def _ensure_text(self, cached: CacheRequest, length: int) -> None:
        """Output is a function of the text before it, so the same history continues the same way."""
        while cached.num_tokens < length:
            known = cached.known[-5:]
            cached.tokens[cached.num_tokens] = int(known.sum() * 7 + cached.num_tokens) % self.config.alphabet
            cached.num_tokens += 1

    # -- endings
    def publish(self, run: Run) -> None:
        self.cache.cache_unfinished_req(run.cached)

    def can_finish(self, run: Run) -> bool:
        holding = run.cached.holding
        return holding is not None and holding.kv_committed_len >= run.cached.num_prompt

    def finish(self, run: Run, back: int) -> None:
        """The stop lies in what the last commit brought, `back` tokens before its end; or one past it (`back` -1)."""
        cached = run.cached
        assert cached.holding is not None
        committed = cached.holding.kv_committed_len
        if back < 0 and committed < self.config.context:
            self._ensure_text(cached, committed + 1)
        target = max(committed - back, run.last_commit_from + (committed > run.last_commit_from), cached.num_prompt)
        target = min(target, cached.num_tokens)
        if target < committed:
            self.marks["overshoots"] += 1
        outcome = Outcome(Verdict.FINISHED, target - cached.num_prompt)
        self._end(run, outcome)
        assert cached.num_tokens == target
        if run.label is not None:
            self.sessions[run.label].history = cached.known.copy()
        self._left(run)

    def abort(self, run: Run) -> None:
        state = "waiting" if run.is_waiting else "first turn" if run.history_len == 0 else "running"
        holding = run.cached.holding
        if holding is not None and holding.kv_committed_len < run.cached.num_prompt:
            state += " prefill"
        self.marks[f"aborts {state}"] += 1
        settled = run.history_len
        is_kept = holding is not None and 0 < settled <= holding.kv_committed_len
        is_kept = is_kept and holding is not None and holding.cache_protected_len <= settled
        self._end(run, Outcome(Verdict.ABORTED))
        if is_kept and run.label is not None:
            following = np.concatenate((run.cached.tokens[:settled], np.zeros(1, dtype=np.int32)))
            match = self.cache.match_prefix(run.cached.key, following)
            assert match == PrefixMatch(settled, "session"), f"an abort lost computed history: {match}, not {settled}"
            self.marks["aborts kept"] += 1
        self._left(run)

    def retract(self, run: Run) -> None:
        release_kv_cache(self.cache, run.cached, Outcome(Verdict.RETRACTED))
        self.running.remove(run)
        self.rows.append(run.row)
        self.epochs[id(run)] += 1
        run.is_waiting = True
        self.waiting.append(run)
        self.marks["retractions"] += 1

    def intrude(self, session: Session) -> None:
        """A second turn is taken back before it ran, while the first runs: nothing of the first may change."""
        assert session.run is not None
        key = CacheKey(session.namespace, session.name)
        tokens = np.zeros(4, dtype=np.int32)
        request = CacheRequest(RequestId("intruder"), key, 1, tokens, 1)
        release_kv_cache(self.cache, request, Outcome(Verdict.ABORTED))
        slot = self.cache.slot(session.name)
        assert slot is not None
        assert slot.is_active
        self.marks["intrusions"] += 1

    def close(self, session: Session) -> None:
        if session.run is not None:
            session.closing = True
            self.marks["deferred closes"] += 1
            return
        del self.sessions[session.name]
        self.cache.release_session(session.name)
        self.marks["closes"] += 1

    def rewind(self, session: Session, length: int) -> None:
        session.history = session.history[:length]
        self.cache.rewind_session(session.name, length)
        self.marks["rewinds"] += 1

    def fork(self, session: Session, length: int) -> None:
        twin = self.open(session.namespace)
        twin.history = session.history[:length].copy()
        self.cache.begin(CacheKey(twin.namespace, twin.name), length)
        self.marks["forks"] += 1

    def _end(self, run: Run, outcome: Outcome) -> None:
        release_kv_cache(self.cache, run.cached, outcome)
        run.is_over = True
        if run.is_waiting:
            self.waiting.remove(run)
        else:
            self.running.remove(run)
            self.rows.append(run.row)

    def _left(self, run: Run) -> None:
        if run.label is not None:
            session = self.sessions[run.label]
            session.run = None
            if session.closing:
                self.close(session)

    # -- laws
    def audit(self) -> None:
        counted = census(self.cache)
        assert counted.holdings_running == len(self.running)
        idle = sum(1 for session in self.sessions.values() if session.run is None)
        assert counted.holdings_idle <= idle
        assert self.cache.session_held_req_count() == counted.holdings_idle
        assert counted.drafts_running == (len(self.running) if self.config.draft_pages else 0)
        assert counted.drafts_idle <= idle + len(self.waiting)
        self._check_flights()
        for pool, statistics in zip(counted.pools, self.cache.statistics(), strict=True):
            terms = dict(pool.terms)
            assert terms["tree"] == statistics.tree
            assert terms["running"] == statistics.running
            assert terms["idle"] == statistics.idle
            parts = statistics.free, statistics.fenced, statistics.reserved
            assert terms["ledger"] == sum(parts)
            assert statistics.evictable <= statistics.tree + statistics.idle

    def _check_flights(self) -> None:
        """What a step in flight may touch belongs to whom it did, or to the tree, or waits behind the fence."""
        tree = FENCED if self.radix is None else self.radix.account
        for flight in self.flights:
            if flight.following is not None:
                self.follower.check(flight.following)
            for ledger, pages in zip(self.book.ledgers, flight.touched, strict=True):
                owners = ledger.owners[pages]
                allowed = (owners == flight.account) | (owners == tree) | (owners == FENCED)
                assert allowed.all(), f"step {flight.step} may touch pages that others have now"

    def everything_is_obtainable(self) -> None:
        """Liveness: with nothing running or in flight, one request may have the whole pool."""
        assert not self.running
        assert not self.flights
        length = min(total - NUM_RESERVED for total in self.totals) * self.config.page_size
        tokens = np.full(length, 99, dtype=np.int32)
        probe = CacheRequest(RequestId("probe"), CacheKey("probe"), length, tokens, length)
        assert self.cache.admit(probe, length), "pages are stuck"
        release_kv_cache(self.cache, probe, Outcome(Verdict.ABORTED))
        self.marks["probes"] += 1

    def wind_down(self) -> None:
        """End everything; every page comes back."""
        for run in [*self.running, *self.waiting]:
            self.abort(run)
        while self.flights:
            self.retire()
        self.audit()
        self.everything_is_obtainable()
        for session in list(self.sessions.values()):
            self.close(session)
        self.cache.flush()
        self.audit()
        for statistics in self.cache.statistics():
            assert statistics.free + statistics.reserved == statistics.total, statistics
        self.marks["draft drops"] += sum(pool.evicted for pool in self.follower.pool.statistics())
        slots = self.cache.slot_statistics()
        self.marks["resumes"] += slots.resumes
        self.marks["demotions"] += slots.demotions
        self.marks["rematches"] += slots.rematches
        if self.radix is not None:
            tree = self.radix.tree_statistics()
            self.marks["full evictions"] += tree.full_pages_evicted
            self.marks["swa evictions"] += tree.swa_pages_evicted
            self.marks["splits"] += tree.splits
            self.marks["merges"] += tree.merges
