"""The model that guesses: loaded, checked against the one it guesses for, sized and given its memory.

Its pool has as many tokens as the model's own, though what conversations share is there once for each: it is best effort.
"""

from dataclasses import dataclass
from pathlib import Path

from sojourn.app.config import NGRAM, NO_DRAFTS, EngineOptions
from sojourn.app.sizing import EngineSize, draft_pages
from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Backend
from sojourn.cache.drafts import DraftPool, draft_book
from sojourn.core.errors import ClientError
from sojourn.models.loading import load
from sojourn.models.progress import Progress
from sojourn.models.store import LoadedModel
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.spec.draft_model import DraftModel


@dataclass(frozen=True, slots=True, eq=False)
class DraftSide:
    """A draft model on its back end. One page of the draft pool is a page of each pool that the back end keeps."""

    model: LoadedModel
    backend: Backend
    page_size: int
    num_pages: int  # the null page included

    def drafter(self) -> DraftModel:
        config = self.model.packed.config
        num_pools = 2 if config.attention.sliding_window else 1
        return DraftModel(
            self.backend, page_size=self.page_size, context_length=config.context_length, num_pools=num_pools
        )

    def pool(self) -> DraftPool:
        return DraftPool(draft_book(self.page_size, self.num_pages))


def load_draft_model(
    options: EngineOptions, target: LoadedModel, cache_dir: Path, progress: Progress
) -> LoadedModel | None:
    """The model that `speculate` names, in its own width; None if it names none. ClientError if it speaks other tokens."""
    if options.speculate in (NO_DRAFTS, NGRAM):
        return None
    draft = load(options.speculate, cache_dir=cache_dir, progress=progress)
    its, wanted = draft.packed.config.vocab_size, target.packed.config.vocab_size
    if its != wanted:
        raise ClientError(
            f"{draft.info.name} cannot guess for {target.info.name}: its vocabulary has {its:,} tokens, not {wanted:,}",
            param="speculate",
        )
    return draft


def make_draft_side(draft: LoadedModel, options: EngineOptions, size: EngineSize, threads: int) -> DraftSide:
    total = draft_pages(options, size.pool_tokens)
    backend = NativeBackend(
        draft.packed,
        page_size=options.page_size,
        num_pages=(total, total if draft.packed.config.attention.sliding_window else NUM_RESERVED),
        kv_dtype=options.kv_dtype,
        threads=threads,
        seqs_max=options.max_running,
    )
    return DraftSide(draft, backend, options.page_size, total)
