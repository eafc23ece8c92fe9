"""Who guesses ahead, and who says how far: from the option to the parts that do it."""

from dataclasses import dataclass

from sojourn.app.config import NGRAM, NO_DRAFTS, EngineOptions
from sojourn.app.draft_side import DraftSide
from sojourn.cache.drafts import DraftPool
from sojourn.core.errors import law
from sojourn.models.store import LoadedModel
from sojourn.scheduler.drafting import DraftPolicy
from sojourn.spec.ngram import NgramDrafter
from sojourn.spec.protocol import Drafter


@dataclass(frozen=True, slots=True, eq=False)
class Speculation:
    """None of both: nobody guesses."""

    drafter: Drafter | None = None
    policy: DraftPolicy | None = None
    drafts: DraftPool | None = None  # None: the drafter keeps no KV

    @property
    def drafts_max(self) -> int:
        return 0 if self.policy is None else self.policy.drafts_max


def spoken(options: EngineOptions) -> str:
    """The option, for a person."""
    if options.speculate == NO_DRAFTS:
        return NO_DRAFTS
    return f"{options.speculate}, up to {options.drafts_max} tokens"


def guesser(options: EngineOptions) -> str:
    """Which kind it is, for a label."""
    return options.speculate if options.speculate in (NO_DRAFTS, NGRAM) else "model"


def speculation(options: EngineOptions, target: LoadedModel, draft: DraftSide | None) -> Speculation:
    """`draft`: the model that `speculate` names, if it names one. A decode is bound by the bytes of its weights."""
    if options.speculate == NO_DRAFTS:
        return Speculation()
    if options.speculate == NGRAM:
        return Speculation(NgramDrafter(), DraftPolicy(options.drafts_max))
    law(draft is not None, "nobody has loaded %s", options.speculate)
    assert draft is not None
    guess = draft.model.info.weight_bytes_total / target.info.weight_bytes_total
    return Speculation(draft.drafter(), DraftPolicy(options.drafts_max, guess), draft.pool())
