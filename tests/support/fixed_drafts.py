"""A policy without a mind: as many drafts as there is room for, always."""

from collections.abc import Sequence

from sojourn.scheduler.drafting import Acceptance, DraftPolicy


class FixedDrafts(DraftPolicy):
    def choose(self, asking: Sequence[tuple[Acceptance, int]]) -> list[int]:
        return [max(0, min(room, self.drafts_max)) for _, room in asking]
