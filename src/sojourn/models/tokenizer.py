"""Text to token ids and back, over a tokenizer.json.

Owns the meaning of a piece: which bytes a token stands for. Knows no model file, no chat and no request.
"""

import re
import threading
from collections.abc import Iterable

import tokenizers

from sojourn.core.errors import ClientError, ModelError
from sojourn.models.text_config import PieceStyle, TextConfig

SPACE_MARK = "\u2581"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for every byte: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(rest)}


BYTE_OF_CHARACTER = byte_level_alphabet()


class Tokenizer:
    """Encode, decode and the bytes of each piece. May be called from any thread."""

    def __init__(self, tokenizer_json: str, config: TextConfig) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer.json cannot be read: {error}") from error
        self._inner.no_truncation()
        self._inner.no_padding()
        self.config = config
        added = self._inner.get_added_tokens_decoder()
        self._literal: dict[int, bytes] = {i: token.content.encode() for i, token in added.items()}
        self._special = frozenset(i for i, token in added.items() if token.special) - frozenset(config.shown_ids)
        self._vocab_size = 1 + max([self._inner.get_vocab_size(with_added_tokens=False) - 1, *added])
        self._pieces: dict[int, bytes] = {}
        self._encoding = threading.Lock()  # whether special tokens are parsed is a switch of the shared library object

    @property
    def vocab_size(self) -> int:
        """Ids are `[0, vocab_size)`; a model's own vocabulary may be padded beyond it."""
        return self._vocab_size

    def encode(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, continues: bool = False
    ) -> list[int]:
        """Ids of `text`. `add_bos` puts BOS first if the model has one. Without `parse_special` the name of a control
        token is text like any other. Text that `continues` other text gets no space put before it, where the tokenizer
        would (Llama 2). Raises ClientError for a lone surrogate."""
        lone = LONE_SURROGATE.search(text)
        if lone is not None:
            raise ClientError(f"text is not valid Unicode: lone surrogate at character {lone.start()}")
        if continues and self.config.strip_leading_space:
            return self._encode_after_newline(text, parse_special)
        ids = self._encode(text, parse_special)
        if add_bos and self.config.bos_id is not None:
            return [self.config.bos_id, *ids]
        return ids

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        with self._encoding:
            self._inner.encode_special_tokens = not parse_special
            ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def _encode_after_newline(self, text: str, parse_special: bool) -> list[int]:
        """Vocabularies that put a space first have no token with a newline and more in it, so the cut is clean."""
        newline = self._encode("\n", parse_special)
        ids = self._encode("\n" + text, parse_special)
        return ids[len(newline) :] if ids[: len(newline)] == newline else self._encode(text, parse_special)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        kept = (i for i in ids if not (skip_special and i in self._special))
        data = b"".join(map(self.id_to_piece, kept))
        if self.config.strip_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def id_to_piece(self, token_id: int) -> bytes:
        """The bytes this token adds to a text; none for an id beyond the vocabulary (padding)."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._find_piece(token_id)
        return piece

    def is_special(self, token_id: int) -> bool:
        """True for control tokens: never part of what a reader sees."""
        return token_id in self._special

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary, such as "<|im_end|>"."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def _find_piece(self, token_id: int) -> bytes:
        if token_id in self._literal:
            return self._literal[token_id]
        text: str | None = self._inner.id_to_token(token_id) if 0 <= token_id < self._vocab_size else None
        if text is None:
            return b""
        if self.config.pieces is PieceStyle.BYTE_LEVEL:
            return b"".join(bytes([BYTE_OF_CHARACTER[c]]) if c in BYTE_OF_CHARACTER else c.encode() for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE_MARK, " ").encode()
