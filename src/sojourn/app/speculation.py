"""Who guesses ahead, and who says how far: from the option to the parts that do it."""

from dataclasses import dataclass

from sojourn.app.config import NGRAM, NO_DRAFTS, EngineOptions
from sojourn.core.errors import ClientError
from sojourn.scheduler.drafting import DraftPolicy
from sojourn.spec.ngram import NgramDrafter
from sojourn.spec.protocol import Drafter


@dataclass(frozen=True, slots=True, eq=False)
class Speculation:
    """None of both: nobody guesses."""

    drafter: Drafter | None = None
    policy: DraftPolicy | None = None

    @property
    def drafts_max(self) -> int:
        return 0 if self.policy is None else self.policy.drafts_max


def spoken(options: EngineOptions) -> str:
    """The option, for a person."""
    if options.speculate == NO_DRAFTS:
        return NO_DRAFTS
    return f"{options.speculate}, up to {options.drafts_max} tokens"


def speculation(options: EngineOptions) -> Speculation:
    if options.speculate == NO_DRAFTS:
        return Speculation()
    if options.speculate == NGRAM:
        return Speculation(NgramDrafter(), DraftPolicy(options.drafts_max))
    raise ClientError(f"speculate must be {NO_DRAFTS} or {NGRAM}, got {options.speculate}", param="speculate")
