"""KV that came with a session's file, given to the engine's disk tier page by page. What is not taken is computed.

Taken only where the operator said so: whoever makes a file can make its sums, and KV that is not what the model computes
would answer for every conversation of that tenant which begins alike.
"""

import asyncio
from collections.abc import Iterator
from functools import partial

import msgspec

from sojourn.api import wire_kv
from sojourn.api.copies import TOKEN_BYTES
from sojourn.api.front import Front
from sojourn.api.sessions.schemas import ImportedKvObject
from sojourn.api.sessions.upload import Arrived, Upload
from sojourn.sessions import archive_kv
from sojourn.sessions.archive_kv import Frame, KvHeader

BATCH_BYTES = 4 << 20  # of one message to the engine
PAUSE_S = 0.02  # before what was not taken is offered again
PATIENCE_S = 5.0  # for the tier to take another page
NOT_ALLOWED = "this server takes no KV from files: --import-kv lets it, where whoever imports is trusted"
NO_ROOM = "the disk cache takes no more: it is full of what was not written yet, or cannot be written"


async def take_kv(front: Front, upload: Upload, arrived: Arrived, name: str, namespace: str) -> ImportedKvObject | None:
    """None: the file has none."""
    header = arrived.kv
    if header is None:
        return None
    if not front.settings.import_kv:
        return ImportedKvObject(tokens=0, left_out=NOT_ALLOWED)
    size = front.text.card.page_size
    computed = (header.pages * size + header.tail_tokens) * TOKEN_BYTES
    history = wire_kv.digest(arrived.copy.token_ids[:computed])
    gone = header.pages
    for batch in _batches(header):
        pages = await asyncio.to_thread(partial(_pages, upload, arrived.kv_at, batch))
        command = wire_kv.PutKv(
            name, namespace, bytes.fromhex(header.kv_format), header.pages, header.tail_tokens, history, pages
        )
        refusal = await _put(front, command)
        if refusal is not None:
            return ImportedKvObject(tokens=0, left_out=refusal)
        here = {(page.pool, page.index) for page in pages}
        gone = min([gone, *(frame.index for frame in batch if (frame.pool, frame.index) not in here)])
    if gone < header.pages:
        has_windows = (
            len(header.page_bytes) > 1
        )  # those that are there are of the end, where nobody can go on without the rest
        return ImportedKvObject(tokens=0 if has_windows else gone * size, left_out="the file does not have the rest")
    return ImportedKvObject(tokens=header.pages * size + header.tail_tokens, left_out=None)


def _batches(header: KvHeader) -> Iterator[list[Frame]]:
    """From the last page to the first: what the tier was given last it gives up last."""
    batch: list[Frame] = []
    size = 0
    for frame in archive_kv.frames(header, from_end=True):
        if batch and size + frame.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += frame.size
    if batch:
        yield batch


def _pages(upload: Upload, at: int, batch: list[Frame]) -> list[wire_kv.KvPage]:
    """Those that were not gone when the file was made."""
    payloads = [archive_kv.payload_of(upload.frame(at, frame)) for frame in batch]
    return [
        wire_kv.KvPage(frame.pool, frame.index, payload)
        for frame, payload in zip(batch, payloads, strict=True)
        if payload is not None
    ]


async def _put(front: Front, command: wire_kv.PutKv) -> str | None:
    """Until all its pages are taken. Why not, if they are not."""
    clock, since = front.world.clock, front.world.clock()
    while command.pages:
        taken = await front.link.ask(command, wire_kv.KvTaken)
        if taken.refusal is not None:
            return taken.refusal
        command = msgspec.structs.replace(command, pages=command.pages[taken.count :])
        if taken.count:
            since = clock()
        elif clock() - since > PATIENCE_S:
            return NO_ROOM
        else:
            await asyncio.sleep(PAUSE_S)
    return None
