"""What a draft model does, for the bookkeeping world: it reads behind the target as far as its pages go, and guesses wrongly.

Its device checks every read, so pages that moved wrongly, or a length claimed and never read, are found.
"""

from dataclasses import dataclass

import numpy as np

from sojourn.cache.drafts import DraftPool
from sojourn.cache.protocol import CacheRequest
from sojourn.core.ids import AccountId
from sojourn.core.step import PageArray, Pool, TableEdit, TokenArray
from sojourn.pages.accounts import FENCED
from sojourn.pages.sizing import NUM_RESERVED
from tests.sim.device import FakeDevice, Job
from tests.support.draft_models import draft_pool

GUESSES = 3


@dataclass(eq=False)
class Following:
    """The draft model's share of one step."""

    job: Job
    end: int  # tokens that stand, read once it has run
    account: AccountId
    touched: PageArray


class Follower:
    def __init__(self, pages: int, page_size: int, rows: int, context: int) -> None:
        """`pages` 0: there is no draft model."""
        self.page_size = page_size
        self.pool: DraftPool = draft_pool(page_size, pages)
        self.device = FakeDevice((pages + NUM_RESERVED,), page_size, 0, rows, context)

    def follow(
        self, cached: CacheRequest, row: int, text: TokenArray, reach: range, edits: tuple[TableEdit, ...]
    ) -> Following | None:
        """Read `text` in `reach`, as far as there are places, and run ahead with tokens that do not stand."""
        draft = cached.draft
        if draft is None:
            return None
        places = draft.num_pages * self.page_size
        read = reach.start
        end = max(read, min(places, reach.stop))
        wrong = np.full(min(GUESSES, places - end), -7, dtype=np.int32)
        own = tuple(TableEdit(Pool.FULL, edit.first, edit.pages) for edit in edits if edit.pool is Pool.DRAFT)
        job = Job(row, read, np.concatenate((text[read:end], wrong)), own, text)
        return Following(job, end, draft.account, draft.lists[0].pages.copy())

    def check(self, following: Following) -> None:
        """What it may touch is still its sequence's, or waits behind the fence."""
        assert self.pool.book is not None
        owners = self.pool.book.ledgers[0].owners[following.touched]
        allowed = (owners == following.account) | (owners == FENCED)
        assert allowed.all(), "draft pages that others have now may be touched"
