r"""A choice as its reader sees it: text in pieces, and beside it the tokens that the text is made of.

    tokens      | Hel | lo | \xe2\x9c | \x85 | ##  | #
    text held     "Hello ✅"                   "##" may begin a stop
    shown         Hello ✅                    and the tokens that begin before its end

Knows tokens and text; knows no surface and no request.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sojourn.api.generation import Piece
from sojourn.api.text.detokenizer import Detokenizer
from sojourn.core.step import Sample
from sojourn.models.tokenizer import Tokenizer

LOGPROB_MIN = -9999.0  # JSON has no infinity


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its log-probability. `bytes:\\xf0` is how one is written that is no text by itself."""

    text: str
    logprob: float
    raw: bytes


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token, where in the text it begins (in characters), and the likeliest ones, best first.

    `is_scored` False: it has no log-probability, for nothing is before it.
    """

    token: Token
    offset: int
    top: tuple[Token, ...]
    is_scored: bool = True


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is shown before its choice. The last of `ids` are those of `samples`; what is before has none.

    `is_written`: the ids were made of the text, so names of special tokens in it count, and what was put before it does
    not. Else the text was made of the ids, without special tokens.
    """

    text: str
    ids: Sequence[int]
    samples: Sequence[Sample]
    is_written: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """What may be shown now."""

    text: str = ""
    tokens: tuple[ShownToken, ...] = ()
    token_ids: list[int] = field(default_factory=list)


class ShownChoice:
    """One choice. Feed `echo` first, if there is one, `piece` for each of its pieces, then `rest` once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._read = 0  # characters of the text that the tokens so far complete
        self._shown = 0  # characters that were shown
        self._waiting: deque[ShownToken] = deque()

    def echo(self, echo: Echo) -> Shown:
        """The prompt with all its tokens; the choice's own text comes behind it."""
        detokenizer = Detokenizer(self._tokenizer, skip_special=not echo.is_written)
        ends = list(accumulate(len(detokenizer.feed(token)) for token in echo.ids))
        before = max(0, ends[-1] - len(echo.text)) if ends else 0
        starts = [min(max(0, end - before), len(echo.text)) for end in (0, *ends[:-1])]
        unscored = len(echo.ids) - len(echo.samples)
        tokens = [
            ShownToken(self._named(token, None), start, (), is_scored=False)
            for token, start in zip(echo.ids[:unscored], starts, strict=False)
        ]
        tokens += map(self._token, echo.samples, starts[unscored:])
        self._read = self._shown = len(echo.text)
        return Shown(echo.text, tuple(tokens))

    def piece(self, piece: Piece) -> Shown:
        """The piece's text, and the tokens that have begun before its end."""
        for sample in piece.samples:
            self._waiting.append(self._token(sample, self._read))
            self._read += len(self._detokenizer.feed(sample.token))
        self._shown += len(piece.text)
        tokens: list[ShownToken] = []
        while self._waiting and self._waiting[0].offset < self._shown:
            tokens.append(self._waiting.popleft())
        return Shown(piece.text, tuple(tokens), piece.token_ids)

    def rest(self, stop: str | int | None) -> Shown:
        """The tokens left: none of a stop string's, and not the end-of-sequence token (`stop` is its id)."""
        if isinstance(stop, str):
            return Shown()
        left = list(self._waiting)
        return Shown(tokens=tuple(left if stop is None else left[:-1]))

    def _token(self, sample: Sample, offset: int) -> ShownToken:
        top = tuple(self._named(token, logprob) for token, logprob in sample.top)
        return ShownToken(self._named(sample.token, sample.logprob), offset, top)

    def _named(self, token_id: int, logprob: float | None) -> Token:
        raw = self._tokenizer.id_to_piece(token_id)
        known = LOGPROB_MIN if logprob is None else max(logprob, LOGPROB_MIN)
        try:
            return Token(raw.decode(), known, raw)
        except UnicodeDecodeError:
            return Token("bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), known, raw)
