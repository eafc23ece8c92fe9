"""Sessions that are trees of requests: every request may go on from any earlier one. Knows tokens; their KV is the cache's.

    prompt(node) = context(parent)[:keep] + own          context(node) = prompt(node) + output

    plan ─▶ begin ─▶ accept: what it replaces is gone ─▶ finish
                └──▶ refuse: the tree is as it was before

A node keeps what is its own; an output grows while its request runs, and what a child keeps of it is counted when the
child begins. Nothing here computes, and nothing of it is lost when the engine is started again.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sojourn.api.errors import LimitError
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, NotFoundError
from sojourn.sessions.values import SessionExistsError

NODES_MAX = 10_000  # of one tree
TOKENS_MAX = 1 << 26  # of all trees: a quarter of a gigabyte


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes on: after the node `rid`, or at the root; `offset` 0 means the end of the context."""

    rid: str | None = None
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """`abort` ends its request while that runs. `replaced`: what goes when its request is accepted; one of them may be
    `namesake`, whose name it has taken."""

    rid: str
    parent: "Node | None"
    keep: int
    own: "array[int]"
    abort: Callable[[], None]
    output: Sequence[int] = ()
    is_running: bool = True
    replaces: bool = False
    is_kept: bool = False  # its tokens are counted
    replaced: "list[Node]" = field(default_factory=list, repr=False)
    namesake: "Node | None" = field(default=None, repr=False)
    children: "list[Node]" = field(default_factory=list, repr=False)

    @property
    def num_tokens(self) -> int:
        """Kept for it; an output counts once it has ended."""
        return len(self.own) + (0 if self.is_running else len(self.output))

    def prompt(self) -> list[int]:
        line: list[Node] = []
        node: Node | None = self
        while node is not None:
            line.append(node)
            node = node.parent
        tokens: list[int] = []
        for node in reversed(line):
            if node.parent is not None:
                tokens += node.parent.output
                del tokens[node.keep :]
            tokens += node.own
        return tokens

    def context(self) -> list[int]:
        return [*self.prompt(), *self.output]

    def family(self) -> "Iterator[Node]":
        """This node and all below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children


@dataclass(slots=True)
class Stock:
    """Tokens kept by all trees together."""

    num_tokens: int = 0


class TreeSession:
    """One session. Its nodes are named by the ids of their requests."""

    def __init__(self, session_id: str, namespace: str, timeout_s: float | None, stock: Stock) -> None:
        self.session_id = session_id
        self.namespace = namespace
        self.timeout_s = timeout_s
        self._stock = stock
        self._nodes: dict[str, Node] = {}

    @property
    def is_running(self) -> bool:
        return any(node.is_running for node in self._nodes.values())

    def plan(self, rid: str, ids: Sequence[int], place: Place, abort: Callable[[], None], bos_id: int | None) -> Node:
        """A node for `begin`: its prompt may be looked at first. Changes nothing; raises ClientError where none may be."""
        parent = self._parent(place)
        replaced = self._replaced_at(parent) if place.replace else []
        earlier = self._nodes.get(rid)
        if earlier is not None and earlier not in replaced:
            raise ClientError(f"rid {rid} is the name of an earlier request of this session", param="rid")
        if len(self._nodes) - len(replaced) >= NODES_MAX:
            raise ClientError(
                f"the session has {NODES_MAX:,} requests, as many as one may have", param="session_params"
            )
        if self._stock.num_tokens - sum(node.num_tokens for node in replaced) >= TOKENS_MAX:
            raise LimitError(f"sessions keep {TOKENS_MAX:,} tokens already; close some", code="too_many_sessions")
        own = array("i", ids)
        if parent is not None and own and own[0] == bos_id:
            del own[0]
        return Node(rid, parent, _kept(parent, place), own, abort, replaces=place.replace)

    def begin(self, node: Node) -> None:
        """It has its place, and its request is asked for. `accept` or `refuse` follows."""
        if node.replaces:
            node.replaced = self._replaced_at(node.parent)
        node.namesake = self._nodes.get(node.rid)
        node.is_kept = True
        self._stock.num_tokens += len(node.own)
        if node.parent is not None:
            node.parent.children.append(node)
        self._nodes[node.rid] = node

    def accept(self, node: Node) -> None:
        """Its request runs. What it replaces, as it was when that was asked, is ended and forgotten with all below."""
        going, node.replaced, node.namesake = node.replaced, [], None
        for root in going:
            for one in [*root.family()]:
                if one.is_kept and one.is_running:
                    one.abort()
                self.remove(one)
        if node.replaces and node.parent is not None and node.parent.is_running:
            node.parent.abort()

    def refuse(self, node: Node) -> None:
        """As if it had never been asked for."""
        namesake, node.replaced, node.namesake = node.namesake, [], None
        self.remove(node)
        if namesake is not None and namesake.is_kept:
            self._nodes[namesake.rid] = namesake

    def finish(self, node: Node) -> None:
        """Its request has ended; what it said so far is its output."""
        node.is_running = False
        node.output = array("i", node.output)
        if node.is_kept:
            self._stock.num_tokens += len(node.output)

    def remove(self, node: Node) -> None:
        """It is in no tree any more."""
        if node.is_kept:
            node.is_kept = False
            self._stock.num_tokens -= node.num_tokens
        if self._nodes.get(node.rid) is node:
            del self._nodes[node.rid]
        if node.parent is not None and node in node.parent.children:
            node.parent.children.remove(node)

    def forget(self) -> None:
        """The session is closed. What runs is answered yet."""
        for node in self._all():
            self.remove(node)

    def _parent(self, place: Place) -> Node | None:
        if place.rid is None:
            return None
        parent = self._nodes.get(place.rid)
        if parent is None:
            raise ClientError("Invalid request session id", param="session_params")
        if parent.is_running and not place.replace:
            raise ClientError("Session request is appending to a request that hasn't finished.", param="session_params")
        return parent

    def _replaced_at(self, parent: Node | None) -> list[Node]:
        return self._all() if parent is None else [*parent.family()][1:]

    def _all(self) -> list[Node]:
        """With those whose names have been taken, by what is not accepted yet."""
        nodes = list(self._nodes.values())
        return nodes + [node.namesake for node in nodes if node.namesake is not None]


def _kept(parent: Node | None, place: Place) -> int:
    """How much of the parent's context stays, in tokens. As of now: an output may still grow."""
    if parent is None:
        return 0
    length = len(parent.prompt()) + (0 if place.drop_previous_output else len(parent.output))
    return len(range(length)[: place.offset]) if place.offset else length


class TreeSessions:
    """The open ones of one front. Ids are a namespace's own: another may have the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trees: dict[tuple[str, str], TreeSession] = {}  # by namespace and id
        self._used_at: dict[tuple[str, str], float] = {}
        self.stock = Stock()

    def open(self, session_id: str, namespace: str, timeout_s: float | None) -> None:
        self._expire()
        key = namespace, session_id
        if key in self._trees:
            raise SessionExistsError(session_id)
        self._trees[key] = TreeSession(session_id, namespace, timeout_s, self.stock)
        self._used_at[key] = self._clock()

    def counts(self, namespace: str) -> tuple[int, int]:
        """How many are open: of all namespaces, and of this one."""
        self._expire()
        return len(self._trees), sum(space == namespace for space, _ in self._trees)

    def find(self, session_id: str, namespace: str) -> TreeSession | None:
        """The tree of that name, if it is open. Looking is using."""
        self._expire()
        key = namespace, session_id
        tree = self._trees.get(key)
        if tree is not None:
            self._used_at[key] = self._clock()
        return tree

    def close(self, session_id: str, namespace: str) -> None:
        tree = self.find(session_id, namespace)
        if tree is None:
            raise NotFoundError(f"no session {session_id} is open", param="session_id")
        self._forget(tree)

    def _expire(self) -> None:
        now = self._clock()
        for key, tree in list(self._trees.items()):
            if tree.timeout_s is not None and now - self._used_at[key] > tree.timeout_s and not tree.is_running:
                self._forget(tree)

    def _forget(self, tree: TreeSession) -> None:
        key = tree.namespace, tree.session_id
        del self._trees[key], self._used_at[key]
        tree.forget()
