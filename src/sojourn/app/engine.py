"""The library's front door: an engine over one model, and the sessions opened on it.

with Engine("smollm2") as engine, engine.open_session() as session:
    for delta in session.turn("Hello"):
        print(delta.text, end="")
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self, Unpack

from sojourn.api.options import TurnKeywords
from sojourn.app.build import World, assemble
from sojourn.app.config import NO_DRAFTS, CacheKind, EngineOptions, WeightsWidth, cache_dir
from sojourn.app.memory import available_memory
from sojourn.app.session import Session, start_alone
from sojourn.app.turn import Turn
from sojourn.backends.protocol import KvDtype
from sojourn.core.bounds import check_text
from sojourn.models.manifest import ModelInfo
from sojourn.models.progress import Progress, SilentProgress
from sojourn.sessions.door import checked_token_ids


class Engine:
    """One model, loaded, with its KV pools and its own compute threads. Any thread may call it.

    Parameters (lengths in tokens):

    model        a name of the catalogue ("smollm2", "gemma3-270m"), a GGUF file, a folder in Hugging Face's layout, or
                 the id of a model on the hub; what is missing is fetched and prepared once
    context      the longest conversation, up to the model's own; by default that, up to 8,192
    weights      "4bit", "8bit" or "f32"; by default the file's own width
    kv_dtype     "f16" or "f32", how keys and values are kept
    threads      compute threads; by default one per physical core that the process may use
    page_size    tokens per page of the KV pools, a power of two up to 256; every size gives the same tokens
    pool_tokens  size of the KV pool that conversations share; by default one whole context
    max_running  turns that run at the same time; others wait
    chunk        most tokens of one prompt in one step: smaller lets running turns flow, larger is faster
    cache        "radix" shares what conversations have in common, "none" does not
    seed         of sampling; by default a fresh one
    overlap      plan the next step while one runs; by default where the compute threads leave a core for it
    speculate    "off", "ngram" (guesses what comes next from what the conversation has said before), or a smaller model of
                 the same vocabulary that guesses, named as `model` is; every choice gives the same tokens
    drafts_max   most tokens guessed ahead; how many are is measured, and none where it would not be faster
    disk_cache   a folder for KV that the pool has no room for, which also outlives the engine; by default none is kept
    disk_cache_bytes   most bytes in it; what was used least recently goes
    disk_cache_ahead   write idle conversations there while nothing else is to be written, so that a killed engine loses
                 little; by default they are, where there is room
    strict_mem_check   when every page is counted from its owner's side too: 0 when the engine goes idle, 1 every few
                 seconds as well, 2 after every step

    Raises ClientError for an option out of bounds or an engine that does not fit the memory (before anything is
    allocated), ModelError for a model that cannot be used.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        context: int | None = None,
        weights: WeightsWidth | None = None,
        kv_dtype: KvDtype = "f16",
        threads: int | None = None,
        page_size: int = 16,
        pool_tokens: int | None = None,
        max_running: int = 8,
        chunk: int = 512,
        cache: CacheKind = "radix",
        strict_mem_check: int = 1,
        seed: int | None = None,
        overlap: bool | None = None,
        speculate: str | Path = NO_DRAFTS,
        drafts_max: int = 8,
        disk_cache: str | Path | None = None,
        disk_cache_bytes: int = 4 << 30,
        disk_cache_ahead: bool = True,
        progress: Progress | None = None,
    ) -> None:
        options = EngineOptions(
            context=context,
            weights=weights,
            kv_dtype=kv_dtype,
            threads=threads,
            page_size=page_size,
            pool_tokens=pool_tokens,
            max_running=max_running,
            chunk=chunk,
            cache=cache,
            strict_mem_check=strict_mem_check,
            seed=seed,
            overlap=overlap,
            speculate=str(speculate),
            drafts_max=drafts_max,
            disk_cache=None if disk_cache is None else str(disk_cache),
            disk_cache_bytes=disk_cache_bytes,
            disk_cache_ahead=disk_cache_ahead,
        )
        opened_at = time.localtime()  # what a template calls now stands still: a conversation is rendered many times
        world = World(
            cache_dir=cache_dir(),
            clock=time.monotonic,
            date=lambda form: time.strftime(form, opened_at),
            seed=secrets.randbits(63) if seed is None else seed,
            free_memory=available_memory(),
        )
        self._parts = assemble(str(model), options, world, progress or SilentProgress())

    def open_session(self, *, system: str | None = None) -> Session:
        """A new conversation; `system` is its system message. Raises ClientError if the model takes none."""
        return Session(self._parts.room, system)

    def generate(
        self,
        message: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        system: str | None = None,
        **options: Unpack[TurnKeywords],
    ) -> Turn:
        """Answer one message, or continue `token_ids`, without a conversation. Options as in `Session.turn`."""
        return start_alone(self._parts.room, message, token_ids, system, options)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; the names of special tokens in it become those tokens."""
        check_text("text", text, 0)
        return self._parts.room.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without special tokens."""
        return self._parts.room.tokenizer.decode(checked_token_ids("token_ids", token_ids, self.vocab_size).tolist())

    @property
    def description(self) -> str:
        """The engine in a line, for a person."""
        info, size = self.info, self._parts.size
        return (
            f"{info.name}: {info.parameters / 1e6:,.0f}M parameters in {info.weight_bytes_total / 2**20:,.0f} MiB, "
            f"context {size.context:,}, "
            f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        )

    @property
    def info(self) -> ModelInfo:
        """Facts about the model: name, licence, parameters, bytes by width."""
        return self._parts.model.info

    @property
    def context(self) -> int:
        """Tokens that one conversation may have."""
        return self._parts.size.context

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self._parts.threads

    @property
    def vocab_size(self) -> int:
        """Token ids are `[0, vocab_size)`."""
        return self._parts.room.vocab_size

    @property
    def has_chat_template(self) -> bool:
        """False: the model continues plain text, and takes no system message."""
        return not self._parts.room.glue.is_plain

    def close(self) -> None:
        """Stop the engine and give back its memory and threads. A turn that still runs ends with an error. May be called
        twice."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
