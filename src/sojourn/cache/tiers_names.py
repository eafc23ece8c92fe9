"""Names of pages: a chain of hashes over the tokens, page by page. A name says everything that its KV depends on.

    root(model, format) ─▶ namespace ─▶ page 0 ─▶ page 1 ─▶ ...
                                           └─▶ the first k tokens of page 1, k < page size

Pure; knows tokens and bytes only. The chain of a node is remembered, for its pages are evicted a few at a time.
"""

import hashlib
from collections import OrderedDict

import numpy as np

from sojourn.cache.node import Node
from sojourn.core.step import TokenArray
from sojourn.core.tier import Names

_DIGEST_BYTES = 24
_NODES_REMEMBERED = 8


class Namer:
    """Names for one model in one format. `identity` stands for both."""

    def __init__(self, identity: bytes, page_size: int) -> None:
        self._identity = identity
        self._page_size = page_size
        self._by_node: OrderedDict[Node, Names] = OrderedDict()

    @property
    def kv_format(self) -> bytes:
        """Of the model and the format of its pages: another one's names are others."""
        return _hash(b"", self._identity)

    def chain(self, namespace: str, tokens: TokenArray) -> Names:
        """Of every whole page of `tokens`."""
        name = self.root(namespace)
        size = self._page_size
        data = np.ascontiguousarray(tokens, dtype=np.int32).tobytes()
        names = []
        for first in range(0, len(tokens) // size * size * 4, size * 4):
            name = _hash(name, data[first : first + size * 4])
            names.append(name)
        return tuple(names)

    def tail(self, before: bytes, tokens: TokenArray) -> bytes:
        """Of a page of which only these tokens stand; `before` names the page before, or the namespace."""
        return _hash(before, np.ascontiguousarray(tokens, dtype=np.int32).tobytes())

    def root(self, namespace: str) -> bytes:
        """What stands before the first page."""
        return _hash(b"", joined(self._identity, namespace.encode("utf-8", "surrogatepass")))

    def of_node(self, node: Node) -> Names:
        """Of every page from the root to the end of `node`.

        The tokens on the way to a node are its own for as long as it lives: a split and a merge leave them, and
        eviction only takes from their end.
        """
        names = self._by_node.get(node)
        if names is None:
            edges, above = [], node
            while above.parent is not None:
                edges.append(above.edge)
                above = above.parent
            names = self.chain(above.namespace or "", np.concatenate(edges[::-1]))
            self._by_node[node] = names
            if len(self._by_node) > _NODES_REMEMBERED:
                self._by_node.popitem(last=False)
        self._by_node.move_to_end(node)
        return names[: node.end]


def joined(*parts: bytes) -> bytes:
    """One from several, so that others never make the same: with their lengths between them."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _hash(before: bytes, what: bytes) -> bytes:
    return hashlib.blake2b(before + what, digest_size=_DIGEST_BYTES).digest()
