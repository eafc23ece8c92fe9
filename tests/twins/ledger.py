"""A dumb twin of the page ledger: one owner per page in a dict, and a list of what waits for which step."""

from dataclasses import dataclass, field


@dataclass
class TwinLedger:
    """Sets and dicts only. `owner` says "free", "fenced", "reserved" or an account."""

    num_pages: int
    owner: dict[int, object] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)
    fence: list[tuple[int, set[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner = dict.fromkeys(range(self.num_pages), "free")
        self.owner[0] = "reserved"

    def pages_of(self, owner: object) -> set[int]:
        return {page for page, who in self.owner.items() if who == owner}

    def give(self, pages: set[int], source: object, target: object) -> None:
        for page in pages:
            assert self.owner[page] == source
            self.owner[page] = target

    def release(self, pages: set[int], source: object) -> None:
        if self.in_flight:
            self.give(pages, source, "fenced")
            self.fence.append((self.in_flight[-1], set(pages)))
        else:
            self.give(pages, source, "free")

    def retire(self) -> None:
        step = self.in_flight.pop(0)
        for until, pages in self.fence:
            if until <= step:
                self.give(pages, "fenced", "free")
        self.fence = [(until, pages) for until, pages in self.fence if until > step]
