"""A dumb twin of the prefix tree: one entry per cached prefix of whole pages, in a dict. Leases are prefixes too."""

from dataclasses import dataclass, field

Prefix = tuple[str, tuple[int, ...]]  # namespace, tokens of whole pages


@dataclass
class TwinTree:
    """`window` 0: no window pool. `alive` tells which prefixes' last window page is live."""

    page_size: int
    window: int
    full: dict[Prefix, int] = field(default_factory=dict)
    swa: dict[Prefix, int] = field(default_factory=dict)
    leases: list[tuple[Prefix, int]] = field(default_factory=list)  # prefix, first window page covered

    def prefixes(self, namespace: str, tokens: list[int], upto: int) -> list[Prefix]:
        size = self.page_size
        return [(namespace, tuple(tokens[: (i + 1) * size])) for i in range(upto // size)]

    def match(self, namespace: str, tokens: list[int]) -> int:
        """Length of the longest legal prefix that leaves one token to compute."""
        best = 0
        path = self.prefixes(namespace, tokens, len(tokens) - 1)
        for count, prefix in enumerate(path, 1):
            if prefix not in self.full:
                break
            length = count * self.page_size
            first = max(0, length - (self.window - 1)) // self.page_size
            if not self.window or all(p in self.swa for p in path[first:count]):
                best = length
        return best

    def publish(self, namespace: str, tokens: list[int], full: list[int], swa: list[int], first: int, end: int) -> None:
        """Pages `[first, end)` are offered; what is there already stays."""
        for index, prefix in enumerate(self.prefixes(namespace, tokens, end * self.page_size)):
            if index >= first:
                self.full.setdefault(prefix, full[index])
                if self.window and swa[index]:
                    self.swa.setdefault(prefix, swa[index])

    def is_protected(self, prefix: Prefix) -> bool:
        namespace, tokens = prefix
        return any(ns == namespace and lent[: len(tokens)] == tokens for (ns, lent), _ in self.leases)

    def is_window_covered(self, prefix: Prefix) -> bool:
        namespace, tokens = prefix
        index = len(tokens) // self.page_size - 1
        return any(
            ns == namespace and lent[: len(tokens)] == tokens and index >= first for (ns, lent), first in self.leases
        )

    def accept_evictions(self, full: dict[Prefix, int], swa: dict[Prefix, int]) -> tuple[int, int]:
        """The real tree now has these entries. It may have lost some, but only ones it was free to lose."""
        assert full.items() <= self.full.items(), "the tree has what nobody published"
        assert swa.items() <= self.swa.items(), "the tree has window pages that nobody published"
        gone = self.full.keys() - full.keys()
        for prefix in gone:
            assert not self.is_protected(prefix), f"{prefix} is lent and evicted"
        for namespace, tokens in full:
            if len(tokens) > self.page_size:
                assert (namespace, tokens[: -self.page_size]) in full, "a page outlives the one before it"
        buried = self.swa.keys() - swa.keys()
        for prefix in buried:
            assert prefix in gone or not self.is_window_covered(prefix), f"window of {prefix} is lent and buried"
        self.full, self.swa = dict(full), dict(swa)
        return len(gone), len(buried)
