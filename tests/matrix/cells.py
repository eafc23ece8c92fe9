"""The combinations of features that must not be seen in what is said, and a few of them that have every two together."""

from dataclasses import astuple, dataclass
from itertools import combinations, product

Setting = tuple[tuple[str, object], tuple[str, object]]  # two axes, a value of each

AXES: dict[str, tuple[object, ...]] = {
    "overlap": (False, True),
    "drafts": ("off", "ngram", "model"),
    "page_size": (1, 16),
    "model": ("smollm2", "gemma3"),
    "chunk": (16, 512),
    "retracts": (False, True),
}


@dataclass(frozen=True)
class Cell:
    overlap: bool
    drafts: str  # who guesses
    page_size: int
    model: str
    chunk: int
    retracts: bool  # every third step

    @property
    def name(self) -> str:
        parts = (
            self.model,
            "overlap" if self.overlap else "plain",
            self.drafts,
            f"page{self.page_size}",
            f"chunk{self.chunk}",
            "retracts" if self.retracts else "calm",
        )
        return "-".join(parts)

    def pairs(self) -> set[Setting]:
        settings = list(zip(AXES, astuple(self), strict=True))
        return set(combinations(settings, 2))


ALL = tuple(Cell(*values) for values in product(*AXES.values()))  # type: ignore[arg-type]


def covering() -> tuple[Cell, ...]:
    """Few cells in which every two values of two axes meet: each time the one with the most that were not together yet."""
    wanted = set().union(*(cell.pairs() for cell in ALL))
    chosen: list[Cell] = []
    while wanted:
        best = max(ALL, key=lambda cell: len(cell.pairs() & wanted))
        chosen.append(best)
        wanted -= best.pairs()
    return tuple(chosen)
