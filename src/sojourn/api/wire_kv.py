"""What goes over the wire for KV that leaves with a session's file, or comes with one. As `wire`, which has all the rest."""

import hashlib

from sojourn.api.wire_base import Body, Message


class KeepKv(Message, frozen=True):
    """Have KV of the first tokens of a session in the disk tier's files. Asked again until nothing is missing."""

    session_id: str
    namespace: str
    num_tokens: int


class KvFiles(Body, frozen=True):
    """Names of pages in the disk tier, as `core.tier.KvNames`. `epoch` is that of the history they are of."""

    epoch: int
    kv_format: bytes
    page_bytes: list[int]
    full: list[bytes]
    windows_from: int
    tail: bytes | None
    tail_len: int
    missing: int


class KvPage(Body, frozen=True):
    """A page of a pool; the one behind the whole pages is the tail's."""

    pool: int
    index: int
    data: bytes


class PutKv(Message, frozen=True):
    """Have the disk tier keep pages of KV that came with a session's history: of `num_pages` whole ones, and of the
    `tail_len` tokens behind them. `history`: `digest` of the tokens that they were computed for."""

    session_id: str
    namespace: str
    kv_format: bytes
    num_pages: int
    tail_len: int
    history: bytes
    pages: list[KvPage]


class KvTaken(Body, frozen=True):
    """The first `count` pages were taken. `refusal`: why none ever will be; None: the rest may be asked again."""

    count: int
    refusal: str | None


def digest(token_ids: bytes) -> bytes:
    """SHA-256 of tokens, 32 bits each, little endian."""
    return hashlib.sha256(token_ids).digest()
