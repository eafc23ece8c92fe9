"""KV that leaves with a session's file or comes with one, at the engine: what of it is where, under which names.

Runs on the engine's thread, a little at a time: the front asks again. Knows no file; of pages, their bytes.
"""

from typing import Protocol

from sojourn.api import wire_kv
from sojourn.api.copies import token_bytes
from sojourn.cache.protocol import CacheKey, InnerCache
from sojourn.core.errors import ClientError
from sojourn.core.step import MODEL_POOLS, TokenArray
from sojourn.core.tier import KvNames
from sojourn.sessions.service import SessionService

NO_TIER = "this server keeps no KV in files: --disk-cache gives it a folder for them"
FOREIGN = "its KV is of other weights, of another type or page size, or of another kind of machine"
UNFIT = "its KV is not of its history"
CHANGED = "its session has another history by now"


class Cache(Protocol):
    def copy_out(self, key: CacheKey, tokens: TokenArray) -> KvNames | None: ...

    @property
    def inner(self) -> InnerCache: ...


def keep(service: SessionService, cache: Cache, name: str, command: wire_kv.KeepKv) -> wire_kv.KvFiles:
    """Raises ClientError where there is no tier."""
    stored = service.copy(name)
    names = cache.copy_out(CacheKey(stored.namespace, name), stored.tokens[: command.num_tokens])
    if names is None:
        raise ClientError(NO_TIER, param="kv", code="no_disk_cache")
    return wire_kv.KvFiles(
        epoch=stored.epoch,
        kv_format=names.kv_format,
        page_bytes=list(names.page_bytes),
        full=list(names.full),
        windows_from=names.windows_from,
        tail=names.tail,
        tail_len=names.tail_len,
        missing=names.missing,
    )


def put(service: SessionService, cache: Cache, name: str, command: wire_kv.PutKv) -> wire_kv.KvTaken:
    """Under names that this session's own tokens and namespace give: a file can speak for nobody else's beginning."""
    stored = service.copy(name)
    key = CacheKey(stored.namespace, name)
    names = cache.inner.kv_names(key, stored.tokens, command.num_pages, command.tail_len)
    if names is None:
        return wire_kv.KvTaken(0, NO_TIER)
    if names.kv_format != command.kv_format:
        return wire_kv.KvTaken(0, FOREIGN)
    if not _fits(names, stored.tokens, command):
        return wire_kv.KvTaken(0, UNFIT)
    computed = stored.tokens[: command.num_pages * names.page_size + command.tail_len]
    if wire_kv.digest(token_bytes(computed)) != command.history:  # since it came: closed and opened again, or rewound
        return wire_kv.KvTaken(0, CHANGED)
    for count, page in enumerate(command.pages):
        own = names.tail if page.index == command.num_pages else names.full[page.index]
        if own is not None and not cache.inner.take_copy(MODEL_POOLS[page.pool], own, page.data):
            return wire_kv.KvTaken(count, None)
    return wire_kv.KvTaken(len(command.pages), None)


def _fits(names: KvNames, tokens: TokenArray, command: wire_kv.PutKv) -> bool:
    """The history has as many tokens, and the pages are of its pools."""
    if len(names.full) != command.num_pages:
        return False
    if command.num_pages * names.page_size + command.tail_len > len(tokens) or command.tail_len >= names.page_size:
        return False
    return all(
        page.pool < len(names.page_bytes)
        and page.index <= command.num_pages
        and len(page.data) == names.page_bytes[page.pool]
        for page in command.pages
    )
