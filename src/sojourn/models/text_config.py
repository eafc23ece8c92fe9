"""What a model says about text beside its tokenizer.json: special ids, the chat template, how pieces become bytes.

Found once by the loaders (`tokenizer_gguf.py`, `tokenizer_directory.py`) and stored with the packed model.
Knows no file format but its own JSON.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from sojourn.core.errors import ModelError

# Tokens that end an assistant's turn wherever a vocabulary has them as special tokens, whatever the file calls its EOS.
END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)


class PieceStyle(StrEnum):
    """How a vocabulary writes bytes."""

    BYTE_LEVEL = "byte_level"  # one printable character per byte (GPT-2)
    SENTENCEPIECE = "sentencepiece"  # U+2581 is a space, <0x0A> is a byte


@dataclass(frozen=True, slots=True)
class TextConfig:
    """`special_tokens` are the texts templates may name: (("bos_token", "<s>"), ...).

    `strip_leading_space`: encoding puts a space before the text, decoding takes it away again.
    `shown_ids`: special where text is parsed, yet text where it is read.
    """

    pieces: PieceStyle
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    strip_leading_space: bool = False
    chat_template: str | None = None
    special_tokens: tuple[tuple[str, str], ...] = ()
    shown_ids: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "TextConfig":
        """The inverse of `to_json`. Raises ModelError naming the field that is missing or of the wrong kind."""
        try:
            raw = json.loads(text)
            return cls(
                pieces=PieceStyle(raw["pieces"]),
                bos_id=None if raw["bos_id"] is None else int(raw["bos_id"]),
                eos_ids=tuple(int(i) for i in raw["eos_ids"]),
                add_bos=bool(raw["add_bos"]),
                strip_leading_space=bool(raw["strip_leading_space"]),
                chat_template=None if raw["chat_template"] is None else str(raw["chat_template"]),
                special_tokens=tuple((str(name), str(token)) for name, token in raw["special_tokens"]),
                shown_ids=tuple(int(i) for i in raw["shown_ids"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"text config cannot be read: {type(error).__name__}: {error}") from error


def end_of_turn_ids(declared: Iterable[int | None], special_ids: Mapping[str, int]) -> tuple[int, ...]:
    """The declared EOS ids, then the ids of well-known end-of-turn tokens; each once, in that order."""
    ids = [i for i in declared if i is not None]
    ids += [special_ids[name] for name in END_OF_TURN_TOKENS if name in special_ids]
    return tuple(dict.fromkeys(ids))
