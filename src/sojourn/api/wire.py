"""What goes over the wire between the front and the engine: every message, once, frozen. msgpack by msgspec.

    front ── Ask(call, command) ──▶ engine        one Answer or Refusal per call, in the order they were obeyed
          ◀── [Answer, Tokens ...] ──             streams: Tokens*, then one Ended, all with the call that started them

Token ids, sampling and stops go in; ids, reasons and counts come out: text is the front's. A call is named by a number
of the front that asked; a front that comes back is another one.
"""

from typing import TypeVar

import msgspec

from sojourn.api.wire_base import Body, Message
from sojourn.api.wire_kv import KeepKv, PutKv
from sojourn.core.step import Sample, SamplingParams
from sojourn.core.tier import TierStatistics
from sojourn.engine.events import Usage
from sojourn.engine.meter import StepStatistics
from sojourn.sessions.recorder import KeptStatistics

R = TypeVar("R")
STORE_DOWN = "store_unavailable"  # the code of a refusal: what was asked could not be made durable


class Elsewhere(Body, frozen=True):
    """Open sessions that the front has and the engine does not know: of all tenants, and of the one that asks."""

    total: int = 0
    own: int = 0


# -- commands: front to engine


class Greet(Message, frozen=True):
    """The first message of a connection. Answered by a `Welcome`."""


class OpenSession(Message, frozen=True):
    """Ids are a namespace's own: another may have the same. Every command names both."""

    session_id: str
    namespace: str
    idle_timeout_s: float | None
    priority: int = 0
    elsewhere: Elsewhere = Elsewhere()


class CheckOpen(Message, frozen=True):
    """Whether `OpenSession` of this name would be refused: answered with `Done`, or refused as that."""

    session_id: str
    namespace: str
    elsewhere: Elsewhere = Elsewhere()


class CloseSession(Message, frozen=True):
    session_id: str
    namespace: str


class ShowSession(Message, frozen=True):
    session_id: str
    namespace: str


class ListSessions(Message, frozen=True):
    """A namespace of None is an administrator's: every one's."""

    namespace: str | None


class ReadTranscript(Message, frozen=True):
    session_id: str
    namespace: str


class CopySession(Message, frozen=True):
    """All that is kept of a session, between two turns."""

    session_id: str
    namespace: str


class KeptTurn(Body, frozen=True):
    """As `TurnOfTranscript`, with the number that is never given twice."""

    turn: int
    start: int
    output_start: int
    end: int
    reason: str
    note: bytes


class SessionCopy(Body, frozen=True):
    """`token_ids`: 32 bits each, little endian. `cache_salt`: the one of its first turn."""

    token_ids: bytes
    turns: list[KeptTurn]
    epoch: int
    next_turn: int
    has_begun: bool
    idle_timeout_s: float | None
    cache_salt: str
    priority: int = 0


class TakeIn(Message, frozen=True):
    """Open a session that was kept elsewhere."""

    session_id: str
    namespace: str
    copy: SessionCopy
    elsewhere: Elsewhere = Elsewhere()


class Rewind(Message, frozen=True):
    """To exactly one of a length in tokens and a number of turns to keep."""

    session_id: str
    namespace: str
    length: int | None
    turns: int | None


class Fork(Message, frozen=True):
    """A new session with the first tokens or turns of this one; all of them when neither is given."""

    session_id: str
    namespace: str
    new_id: str
    length: int | None
    turns: int | None
    elsewhere: Elsewhere = Elsewhere()


class Start(Message, frozen=True):
    """Run a turn of a session, or a request that stands alone (no session_id).

    `expected_tokens`: the length of history that `token_ids` were made for; another one is refused. `note` is kept with
    the turn. `max_new_tokens` 0 prefills only. `bos_id`: left out where it comes first and there is history before it.
    `cache_salt`: KV is shared with requests of the same salt only; a session keeps that of its first turn.
    `logprobs_from`: log-probabilities of `token_ids` from this one on come too, as `sampling.num_logprobs` asks.
    """

    session_id: str | None
    namespace: str
    token_ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int | None = None
    stops: list[str] = msgspec.field(default_factory=list)
    stop_ids: list[int] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    skip_special: bool = True
    expected_tokens: int | None = None
    note: bytes = b""
    bos_id: int | None = None
    cache_salt: str = ""
    logprobs_from: int | None = None


class End(Message, frozen=True):
    """End the request that `call` started: undone, or what was said stands."""

    call: int
    undo: bool


class Interrupt(Message, frozen=True):
    """End the running turn of a session. `keep`: that many tokens of its answer stand, None all, 0 undoes the turn."""

    session_id: str
    namespace: str
    keep: int | None


class ShowPools(Message, frozen=True):
    pass


class Flush(Message, frozen=True):
    """Drop every page that nobody runs on; sessions and their histories live."""


Command = (
    Greet
    | OpenSession
    | CheckOpen
    | CloseSession
    | ShowSession
    | ListSessions
    | ReadTranscript
    | CopySession
    | TakeIn
    | KeepKv
    | PutKv
    | Rewind
    | Fork
    | Start
    | End
    | Interrupt
    | ShowPools
    | Flush
)


class Ask(Body, frozen=True):
    """`engine` is the one that was greeted: another one, started since, does not obey."""

    engine: str
    call: int
    command: Command


# -- answers


class PoolPages(Body, frozen=True):
    """Pages of one pool by owner; free to idle add up to `total`, else the difference has leaked."""

    pool: str
    total: int
    free: int
    fenced: int
    reserved: int
    tree: int
    running: int
    idle: int
    evictable: int
    evicted: int = 0  # since the start, for want of pages
    flushed: int = 0


class HeldPages(Body, frozen=True):
    pool: str
    own: int
    leased: int


class Killed(Body, frozen=True):
    """A turn that the end of an engine cut off, with the tokens it had said."""

    num_prompt: int
    token_ids: list[int]
    note: bytes


class SessionInfo(Body, frozen=True):
    session_id: str
    namespace: str
    state: str
    num_tokens: int
    num_turns: int
    idle_timeout_s: float | None
    pages: list[HeldPages]
    killed: Killed | None = None
    priority: int = 0


class SessionList(Body, frozen=True):
    sessions: list[SessionInfo]


class Closed(Body, frozen=True):
    deferred: bool
    freed_pages: int | None


class TurnOfTranscript(Body, frozen=True):
    """Places in the transcript's tokens: prompt `[start, output_start)`, output `[output_start, end)`."""

    start: int
    output_start: int
    end: int
    reason: str
    note: bytes


class Transcript(Body, frozen=True):
    state: str
    token_ids: list[int]
    turns: list[TurnOfTranscript]


class Started(Body, frozen=True):
    """`turn` counts the turns that stand before this one; None outside a session."""

    turn: int | None
    prompt_tokens: int


class Stopped(Body, frozen=True):
    """Whether there was anything to stop."""

    stopped: bool


class Unwritten(Body, frozen=True):
    """What the disk tier would miss if the engine died now: idle sessions to be looked at, pages on their way to files."""

    sessions: int
    pages: int


class Pools(Body, frozen=True):
    """`unwritten` None: there is no disk tier."""

    pools: list[PoolPages]
    unwritten: Unwritten | None = None


class Done(Body, frozen=True):
    pass


class ModelCard(Body, frozen=True):
    """The model as the front needs it: its text side, and its bounds in tokens."""

    name: str
    source: str
    tokenizer_json: str
    text_json: str
    vocab_size: int
    context: int
    page_size: int
    parameters: int
    license: str
    kv_dtype: str
    threads: int
    max_running: int
    pool_names: list[str]
    kv_bytes: list[int]  # of each pool
    fingerprint: str = ""
    guesser: str = "off"  # who guesses ahead: "off", "ngram", "model"


# -- engine to front


class Welcome(Message, frozen=True):
    engine: str
    card: ModelCard


class Answer(Message, frozen=True):
    """`body` is one of the answers above, encoded: who asked knows which."""

    call: int
    body: bytes


class Refusal(Message, frozen=True):
    call: int
    status: int
    message: str
    param: str | None
    code: str | None
    retry_after_s: int | None = None


class Tokens(Message, frozen=True):
    """What one step added. `samples` beside `ids` only where log-probabilities were asked for, `known` only where they
    were of the prompt: its next tokens. They come before the first id."""

    call: int
    ids: list[int]
    samples: list[Sample] | None = None
    cached_tokens: int = 0  # of the whole request
    known: list[Sample] = msgspec.field(default_factory=list)


class Ended(Message, frozen=True):
    """The last message of a stream. The first `kept` output tokens stand (all, but after an interruption to fewer).

    `is_unstored`: it was computed, could not be made durable, and is undone.
    `cached_source` says where cached tokens came from, `miss` why there were fewer than the history has; None: no miss.
    """

    call: int
    reason: str
    usage: Usage
    kept: int
    message: str = ""
    stop_match: str | int | None = None
    miss: str | None = None
    pages_held: int = 0
    is_unstored: bool = False


class SessionEnded(Message, frozen=True):
    """A session closed later than it was asked to, or by itself."""

    session_id: str
    namespace: str
    why: str  # in the words of `SessionClosed`
    freed_pages: int
    num_tokens: int
    num_turns: int


class Heartbeat(Message, frozen=True):
    """The engine's thread answers: it is between two steps or idle. `at` is its clock."""

    at: float
    is_busy: bool
    steps: int
    running: int
    waiting: int
    admissions: int
    retractions: int
    sessions: int
    sessions_active: int
    sessions_idle: int  # with KV of their own
    sessions_closing: int  # of the active ones
    demotions: int
    pools: list[PoolPages]
    retracted_tokens: int
    steps_by_phase: list[StepStatistics]
    waiting_for: list[tuple[str, int]]  # `waiting` by reason
    drafted_tokens: int = 0  # guessed ahead and verified
    accepted_tokens: int = 0  # of those
    disk: TierStatistics | None = None
    sessions_to_copy: int = 0  # idle ones that the disk tier has not looked at since
    kept: KeptStatistics | None = None  # of sessions


Event = Welcome | Answer | Refusal | Tokens | Ended | SessionEnded | Heartbeat

encoder = msgspec.msgpack.Encoder()
ask_decoder = msgspec.msgpack.Decoder(Ask)
events_decoder: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])


def decode_body(body: bytes, kind: type[R]) -> R:
    return msgspec.msgpack.decode(body, type=kind)
