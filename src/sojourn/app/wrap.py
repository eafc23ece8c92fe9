"""Text that arrives in pieces, broken between words to a width. Holds back the last word; knows nothing of terminals."""

import re

from rich.cells import cell_len

PARTS = re.compile(r"\n|[^\S\n]+|\S")


class WordWrap:
    """Feed pieces, print what comes back, print `flush` at the end.

    Line breaks of the text stay; spaces at a break of ours go. A word wider than a line is left to the terminal, and
    between wide characters (CJK, emoji) a line may break anywhere.
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0
        self._spaces = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """What can be printed now."""
        return "".join(map(self._feed_part, PARTS.findall(text)))

    def flush(self) -> str:
        """The last word."""
        return self._place()

    def _feed_part(self, part: str) -> str:
        if part == "\n":
            out = self._place() + "\n"
            self._column, self._spaces = 0, ""
            return out
        if part.isspace():
            out = self._place()
            self._spaces += part
            return out
        if cell_len(part) > 1:
            out = self._place()
            self._word = part
            return out + self._place()
        self._word += part
        return ""

    def _place(self) -> str:
        """Put the word that is complete behind the spaces before it, or at the start of a new line."""
        if not self._word:
            return ""
        word, spaces = self._word, self._spaces
        self._word = self._spaces = ""
        width = cell_len(word)
        if self._column and self._column + cell_len(spaces) + width > self._width:
            self._column = width
            return "\n" + word
        self._column += cell_len(spaces) + width
        return spaces + word
