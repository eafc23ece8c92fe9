"""Why a turn finds less than its history. Words for those who ask, and how one of them is chosen. Pure.

history   0 ............ found ............ reach ............... needed     all but its last token, which is computed
          KV is reused         | its windows are gone | and so is this       for its logits in any case
"""

from enum import StrEnum


class Miss(StrEnum):
    """The first four are what happened to a session's own KV, the last three to pages that it shared."""

    DEMOTED = "demoted"  # pages were short: whole ones became the tree's, the last tokens' page was given up
    REWIND = "rewind"  # into pages that are shared: the whole ones before are reused
    FORK = "fork"  # as after a rewind
    RETRACTED = "retracted"  # the turn before ended while pages were short for it
    RESTORED = "restored"  # read back, from a store or a file
    WINDOW = "window"  # its pages are there, but not those of the sliding window before the point
    EVICTED = "evicted"  # pages were short, and went to others
    FLUSHED = "flushed"  # an administrator dropped everything


def miss_of(needed: int, found: int, reach: int, page_size: int, loss: Miss | None) -> Miss | None:
    """None: nothing is missed. `loss`: what last became of the session's own KV; None: it has it.

    With its own KV, or pages whose window alone is gone, it is the window. Without, what is less than a page is lost in
    whatever became of it, and what is more, to eviction; unless nothing was to be expected.
    """
    if found >= needed:
        return None
    if loss is None or reach > found:
        return Miss.WINDOW
    if loss in (Miss.FLUSHED, Miss.RESTORED) or found >= needed - needed % page_size:
        return loss
    return Miss.EVICTED
