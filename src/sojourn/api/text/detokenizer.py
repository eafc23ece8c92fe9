"""Token ids to text as they arrive. Owns the bytes of a character that is not complete yet; knows no request.

ids      [ "hel" ] [ "lo \\xf0\\x9f" ] [ "\\x98\\x80" ]
deltas     "hel"     "lo "             "😀"
"""

import codecs

from sojourn.models.tokenizer import Tokenizer


class Detokenizer:
    """The concatenation of all deltas and the flush equals `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.config.strip_leading_space

    def feed(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        piece = self._tokenizer.id_to_piece(token_id)
        if self._strip_space and piece:
            piece = piece.removeprefix(b" ")
            self._strip_space = False
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """What an incomplete character at the end becomes; nothing more comes after it."""
        return self._utf8.decode(b"", final=True)
