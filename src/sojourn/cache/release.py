"""The one way a request gives up its KV, whatever kind it is; and the access to a running one's. Knows no kinds."""

from sojourn.cache.protocol import CacheRequest, Outcome, PrefixCache
from sojourn.core.errors import law
from sojourn.pages.holding import Holding


def release_kv_cache(cache: PrefixCache, request: CacheRequest, outcome: Outcome) -> None:
    """The request stops running; afterwards it holds nothing."""
    cache.cache_finished_req(request, outcome)
    law(request.holding is None, "%s still has a holding after %s", request.request_id, outcome.verdict)


def holding_of(request: CacheRequest) -> Holding:
    """The holding of an admitted request."""
    holding = request.holding
    if holding is None:
        law(False, "%s has no holding", request.request_id)
    assert holding is not None
    return holding


def trim_overshoot(request: CacheRequest, finished_len: int) -> int:
    """Cut output tokens to `finished_len`; returns the request's final length. What the cut gives back is the caller's."""
    target = request.num_prompt + finished_len
    law(finished_len >= 0 and target <= request.num_tokens, "%s: finished at %d of %d tokens", request.request_id, target,
        request.num_tokens)  # fmt: skip
    request.num_tokens = target
    return target
