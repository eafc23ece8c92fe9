"""A tokenizer.json and a TextConfig from the metadata of a GGUF file.

Two kinds: "gpt2" (byte-level BPE with merges in the file) and "llama" (SentencePiece BPE, whose merges are rebuilt from
the scores). Knows GGUF's keys as decoded Python values, not how they are stored.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sojourn.core.errors import ModelError
from sojourn.models.text_config import END_OF_TURN_TOKENS, PieceStyle, TextConfig, end_of_turn_ids
from sojourn.models.tokenizer import BYTE_OF_CHARACTER, SPACE_MARK
from sojourn.models.tokenizer_pre import WordCut, word_cut

STRIKE_END = "</s>"


class TokenType(IntEnum):
    """GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    ids: Mapping[str, int]


def tokenizer_from_gguf(fields: Mapping[str, object]) -> tuple[str, TextConfig]:
    """(tokenizer.json, text config) of decoded metadata. Raises ModelError naming the key that is missing or wrong."""
    kind = _text(fields, "tokenizer.ggml.model")
    if kind is None:
        raise ModelError(
            "tokenizer.ggml.model is missing: the file has no tokenizer; use one that was converted with it"
        )
    vocabulary = _vocabulary(fields)
    if kind == "gpt2":
        tokenizer = _byte_level(fields, vocabulary)
        pieces, space_prefix = PieceStyle.BYTE_LEVEL, False
    elif kind == "llama":
        space_prefix = _flag(fields, "tokenizer.ggml.add_space_prefix", True)
        tokenizer = _sentencepiece(fields, vocabulary, space_prefix)
        pieces = PieceStyle.SENTENCEPIECE
    else:
        raise ModelError(
            f"tokenizer.ggml.model: {kind!r} is not supported; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)"
        )
    _add_tokens(tokenizer, vocabulary)
    return tokenizer.to_str(), _text_config(fields, vocabulary, pieces, space_prefix)


def merges_from_scores(tokens: Sequence[str], scores: Sequence[float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first.

    SentencePiece merges the neighbours whose union has the best score, the leftmost first among equals. A rank per pair
    says the same except among pairs that give the same token. There any order will do for Gemma (40,000 random texts,
    half of them runs, equal llama.cpp's either way); here the longer left part, as a run is merged from its left end.
    """

    def pairs() -> Iterator[tuple[float, int, int, str, str]]:
        for token_id, token in enumerate(tokens):
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in ids and right in ids:
                    yield -scores[token_id], token_id, -cut, left, right

    return [(left, right) for _, _, _, left, right in sorted(pairs())]


def cut_words(cut: WordCut, ids: Container[str]) -> pre_tokenizers.Sequence:
    """The cut, then bytes as characters. A byte the vocabulary lacks (SmolLM2: some control characters) has no id and
    is lost; it still keeps its neighbours from merging."""
    lacking = "".join(re.escape(character) for character in BYTE_OF_CHARACTER if character not in ids)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    drop = [pre_tokenizers.Split(Regex(f"[{lacking}]"), "removed")] if lacking else []
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), *drop])


def _byte_level(fields: Mapping[str, object], vocabulary: Vocabulary) -> Tokenizer:
    raw = fields.get("tokenizer.ggml.merges")
    if not isinstance(raw, (list, tuple)):
        raise ModelError("tokenizer.ggml.merges is missing: a gpt2 tokenizer needs its merges; convert the model again")
    merges: list[tuple[str, str]] = []
    for n, line in enumerate(raw):
        left, space, right = str(line).partition(" ")
        if not (space and left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids):
            raise ModelError(
                f"tokenizer.ggml.merges[{n}]: {line!r} does not join two tokens of the vocabulary into a third"
            )
        merges.append((left, right))
    cut = word_cut(_text(fields, "tokenizer.ggml.pre") or "default")
    tokenizer = Tokenizer(models.BPE(dict(vocabulary.ids), merges, ignore_merges=cut.whole_words))
    tokenizer.pre_tokenizer = cut_words(cut, vocabulary.ids)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: Mapping[str, object], vocabulary: Vocabulary, space_prefix: bool) -> Tokenizer:
    scores = fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, (list, tuple)) or len(scores) != len(vocabulary.tokens):
        raise ModelError("tokenizer.ggml.scores: a llama tokenizer needs one score per token; convert the model again")
    merges = merges_from_scores(vocabulary.tokens, [float(score) for score in scores], vocabulary.ids)
    unknown = _id(fields, "tokenizer.ggml.unknown_token_id", vocabulary)
    tokenizer = Tokenizer(
        models.BPE(
            dict(vocabulary.ids),
            merges,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=False,
            byte_fallback=True,
        )
    )
    mark_spaces = normalizers.Replace(" ", SPACE_MARK)
    prefix = [normalizers.Prepend(SPACE_MARK)] if space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, mark_spaces])
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if space_prefix else [])])
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are found in text only when special tokens are parsed, user-defined ones always."""
    special = [token for token in vocabulary.tokens if _is_control(token, vocabulary)]
    plain = [t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == TokenType.USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in plain if not _is_control(t, vocabulary)]
    )


def _is_control(token: str, vocabulary: Vocabulary) -> bool:
    """By its type, or by a name that can only be one (converters forget); </s> too, see `_shown_ids`."""
    kind = vocabulary.types[vocabulary.ids[token]]
    return kind in (TokenType.CONTROL, TokenType.UNKNOWN) or token in END_OF_TURN_TOKENS or token == STRIKE_END


def _shown_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Gemma's </s> is HTML and not an end: parsed as a control token, as llama.cpp does, but shown to a reader."""
    end = vocabulary.ids.get(STRIKE_END)
    return (end,) if end is not None and vocabulary.types[end] == TokenType.USER_DEFINED else ()


def _text_config(
    fields: Mapping[str, object], vocabulary: Vocabulary, pieces: PieceStyle, space_prefix: bool
) -> TextConfig:
    def named(key: str) -> int | None:
        return _id(fields, f"tokenizer.ggml.{key}_token_id", vocabulary)

    control = {t: i for t, i in vocabulary.ids.items() if _is_control(t, vocabulary)}
    roles = {
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
    }
    llama3 = pieces is PieceStyle.BYTE_LEVEL and word_cut(_text(fields, "tokenizer.ggml.pre") or "default").adds_bos
    add_bos = _flag(fields, "tokenizer.ggml.add_bos_token", pieces is PieceStyle.SENTENCEPIECE or llama3)
    return TextConfig(
        pieces=pieces,
        bos_id=named("bos"),
        eos_ids=end_of_turn_ids([named("eos"), named("eot"), named("eom")], control),
        add_bos=add_bos,
        strip_leading_space=space_prefix,
        shown_ids=_shown_ids(vocabulary),
        chat_template=_text(fields, "tokenizer.chat_template"),
        special_tokens=tuple((role, vocabulary.tokens[i]) for role, i in roles.items() if i is not None),
    )


def _vocabulary(fields: Mapping[str, object]) -> Vocabulary:
    raw = fields.get("tokenizer.ggml.tokens")
    if not isinstance(raw, (list, tuple)) or not raw:
        raise ModelError(
            "tokenizer.ggml.tokens is missing: the file has no vocabulary; use one that was converted with it"
        )
    tokens = tuple(str(token) or f"[EMPTY_{n}]" for n, token in enumerate(raw))
    ids = {token: n for n, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for n, token in enumerate(tokens) if ids[token] != n)
        raise ModelError(f"tokenizer.ggml.tokens: {twice!r} occurs twice; ids would be ambiguous")
    kinds = fields.get("tokenizer.ggml.token_type")
    if kinds is None:
        return Vocabulary(tokens, (TokenType.NORMAL,) * len(tokens), ids)
    if not isinstance(kinds, (list, tuple)) or len(kinds) != len(tokens):
        raise ModelError(f"tokenizer.ggml.token_type: needs one entry for each of the {len(tokens)} tokens")
    return Vocabulary(tokens, tuple(int(kind) for kind in kinds), ids)


def _text(fields: Mapping[str, object], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelError(f"{key}: expected text, found {type(value).__name__}")
    return value


def _flag(fields: Mapping[str, object], key: str, default: bool) -> bool:
    value = fields.get(key)
    return default if value is None else bool(value)


def _id(fields: Mapping[str, object], key: str, vocabulary: Vocabulary) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(vocabulary.tokens):
        raise ModelError(f"{key}: {value!r} is not one of the {len(vocabulary.tokens)} tokens")
    return value
