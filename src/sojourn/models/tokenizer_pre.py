"""How byte-level vocabularies cut text into words before merging: GGUF's `tokenizer.ggml.pre` by name.

A cut is a list of patterns applied one after the other: what a pattern matches becomes a word, and so does each stretch
between two matches. Written from the published pre-tokenizers of the models; names and effect as in llama.cpp.
Knows regular expressions only, no vocabulary.
"""

from dataclasses import dataclass

from sojourn.core.errors import ModelError

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_GPT4_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT4_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN_LETTERS = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*"
)


@dataclass(frozen=True, slots=True)
class WordCut:
    """`whole_words`: a word of the vocabulary is that token, without merging. `adds_bos`: unless the file says."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_GPT2 = WordCut((_GPT2_WORDS,))
_DIGITS_FIRST = WordCut((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = WordCut((_GPT4_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _GPT4_TAIL,), True, True)
_QWEN2 = WordCut((_GPT4_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _GPT4_TAIL,))
_TEKKEN = WordCut((_TEKKEN_LETTERS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",), True, True)
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = WordCut((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS))
_DEFAULT = WordCut((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

WORD_CUTS = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "smollm": _DIGITS_FIRST,
    "starcoder": _DIGITS_FIRST,
    "refact": _DIGITS_FIRST,
    "command-r": _DIGITS_FIRST,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "deepseek-v3": _DEEPSEEK3,
}


def word_cut(name: str) -> WordCut:
    """The cut of that name. Raises ModelError listing the known ones: a guess would give wrong ids in silence."""
    if name not in WORD_CUTS:
        known = ", ".join(sorted(WORD_CUTS))
        raise ModelError(f"tokenizer.ggml.pre: {name!r} is not known; known: {known}")
    return WORD_CUTS[name]
