"""Stop strings over token edges: where a text ends, and which text may be shown before that is known.

`StopStrings` asks once per token (the scheduler's matcher); `TextStream` turns tokens into deltas that end before the
stop. Both walk the same automaton (Aho and Corasick) one character at a time, so a token
costs its own length and that of what is held back.

The stop whose end comes first wins; of several that end at the same character, the longest. Knows no request.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sojourn.api.text.detokenizer import Detokenizer
from sojourn.core.errors import ClientError
from sojourn.models.tokenizer import Tokenizer


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of some stops: `depth` characters long. `match` is the longest stop that ends here."""

    depth: int
    next: dict[str, "_Node"] = field(default_factory=dict, repr=False)
    fallback: "_Node | None" = field(default=None, repr=False)
    match: str | None = None


class StopAutomaton:
    """The stops of one request, compiled. Immutable, shared by matcher and stream."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ClientError("a stop string is empty: it would stop before the first token", param="stop")
        self.root = _Node(0)
        for stop in stops:
            node = self.root
            for character in stop:
                node = node.next.setdefault(character, _Node(node.depth + 1))
            node.match = stop
        self._link()

    def step(self, node: _Node, character: str) -> _Node:
        """The longest beginning of a stop that ends with this character."""
        at: _Node | None = node
        while at is not None:
            if character in at.next:
                return at.next[character]
            at = at.fallback
        return self.root

    def _link(self) -> None:
        """Fallbacks breadth first: a node's is the longest proper suffix of it that begins a stop."""
        queue = deque([self.root])
        while queue:
            node = queue.popleft()
            for character, child in node.next.items():
                child.fallback = self.root if node.fallback is None else self.step(node.fallback, character)
                child.match = child.match or child.fallback.match
                queue.append(child)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`num_tokens` tokens stand, the completing one included; the text shown is `text_len` characters long."""

    stop: str
    num_tokens: int
    text_len: int


class TextStream:
    """Tokens to the text a reader sees: special tokens left out, nothing that may belong to a stop shown too early.

    A stop that is the name of a special token matches that token. `ending_ids` end the text too, and are not shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        skip_special: bool = True,
        ending_ids: Collection[int] = (),
    ) -> None:
        self._automaton = StopAutomaton(stops)
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._named = dict.fromkeys(ending_ids, "") | _special_ids(tokenizer, stops)
        self._node = self._automaton.root
        self._held = ""  # not shown yet: the end of the text, as long as the node is deep
        self._num_tokens = 0
        self._text_len = 0
        self._match: StopMatch | None = None

    @property
    def match(self) -> StopMatch | None:
        """The stop that ended the text. Tokens fed after it change nothing."""
        return self._match

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens allow to be shown."""
        return "".join(map(self._feed_one, token_ids))

    def flush(self) -> str:
        """The rest, when no more tokens come: what was held back, and U+FFFD for half a character."""
        rest, self._held = self._held, ""
        return "" if self._match is not None else self._show(rest + self._detokenizer.flush())

    def _feed_one(self, token_id: int) -> str:
        if self._match is not None:
            return ""
        self._num_tokens += 1
        if token_id in self._named:
            rest, self._held = self._held, ""
            return self._finish(self._named[token_id], rest + self._detokenizer.flush())
        delta = self._detokenizer.feed(token_id)
        text = self._held + delta
        for seen, character in enumerate(delta, start=len(self._held) + 1):
            self._node = self._automaton.step(self._node, character)
            if self._node.match is not None:
                self._held = ""
                return self._finish(self._node.match, text[: seen - len(self._node.match)])
        safe = len(text) - self._node.depth
        self._held = text[safe:]
        return self._show(text[:safe])

    def _show(self, text: str) -> str:
        self._text_len += len(text)
        return text

    def _finish(self, stop: str, text: str) -> str:
        self._show(text)
        self._match = StopMatch(stop, self._num_tokens, self._text_len)
        return text


class StopStrings:
    """The scheduler's matcher: which stop, if any, a token completes."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, skip_special: bool = True) -> None:
        self._stream = TextStream(tokenizer, stops, skip_special=skip_special)

    def feed(self, token_id: int) -> str | None:
        """The stop that the text up to and with this token contains, when it is the first; asked once per token."""
        already = self._stream.match is not None
        self._stream.feed([token_id])
        match = self._stream.match
        return None if match is None or already else match.stop


def _special_ids(tokenizer: Tokenizer, stops: Sequence[str]) -> dict[int, str]:
    ids = {stop: tokenizer.token_to_id(stop) for stop in stops}
    return {i: stop for stop, i in ids.items() if i is not None and tokenizer.is_special(i)}
