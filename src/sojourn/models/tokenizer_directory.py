"""A tokenizer.json and a TextConfig from a Hugging Face model directory.

Reads tokenizer.json, tokenizer_config.json, generation_config.json, config.json and chat_template.jinja. Only the first
must be there. Knows no weights.
"""

import json
from pathlib import Path

import tokenizers

from sojourn.core.errors import ModelError
from sojourn.models.text_config import PieceStyle, TextConfig, end_of_turn_ids
from sojourn.models.tokenizer import SPACE_MARK

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_from_directory(path: Path) -> tuple[str, TextConfig]:
    """(tokenizer.json, text config) of the directory. Raises ModelError naming the file that is missing or broken."""
    source = path / "tokenizer.json"
    if not source.is_file():
        hint = "save it with save_pretrained of a fast tokenizer, or use a GGUF file of the model"
        if (path / "tokenizer.model").is_file():
            hint = "tokenizer.model alone is not read; " + hint
        raise ModelError(f"{source} is missing: {hint}")
    text = source.read_text(encoding="utf-8")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{source}: cannot be read: {error}") from error
    settings = _json_object(path / "tokenizer_config.json")
    roles = _special_tokens(settings) or _special_tokens(_json_object(path / "special_tokens_map.json"))
    added = tokenizer.get_added_tokens_decoder()
    special_ids = {token.content: i for i, token in added.items() if token.special}
    bos_id = tokenizer.token_to_id(roles["bos_token"]) if "bos_token" in roles else None
    eos_id = tokenizer.token_to_id(roles["eos_token"]) if "eos_token" in roles else None
    declared = [eos_id, *_eos_ids(path / "generation_config.json"), *_eos_ids(path / "config.json")]
    pieces, strips = _piece_style(json.loads(text).get("decoder"), source)
    config = TextConfig(
        pieces=pieces,
        bos_id=bos_id,
        eos_ids=end_of_turn_ids(declared, special_ids),
        add_bos=bos_id is not None and _adds_bos(settings, tokenizer, bos_id),
        strip_leading_space=strips,
        chat_template=_chat_template(path, settings),
        special_tokens=tuple(roles.items()),
    )
    return text, config


def _piece_style(decoder: object, source: Path) -> tuple[PieceStyle, bool]:
    """(style, whether decoding takes a leading space away), from the decoder of a tokenizer.json."""
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {step.get("type"): step for step in steps if isinstance(step, dict)}
    if "ByteLevel" in kinds:
        return PieceStyle.BYTE_LEVEL, False
    if "Metaspace" in kinds:
        return PieceStyle.SENTENCEPIECE, kinds["Metaspace"].get("prepend_scheme", "always") != "never"
    if kinds.get("Replace", {}).get("pattern") == {"String": SPACE_MARK}:
        return PieceStyle.SENTENCEPIECE, "Strip" in kinds
    found = ", ".join(sorted(map(str, kinds))) or "none"
    raise ModelError(
        f"{source}: decoder: {found} is not supported; known: ByteLevel, and SentencePiece's Metaspace or Replace"
    )


def _adds_bos(settings: dict[str, object], tokenizer: tokenizers.Tokenizer, bos_id: int) -> bool:
    declared = settings.get("add_bos_token")
    if isinstance(declared, bool):
        return declared
    ids: list[int] = tokenizer.encode("").ids
    return ids[:1] == [bos_id]


def _special_tokens(settings: dict[str, object]) -> dict[str, str]:
    """The texts of the special tokens, each given as a string or as an object with `content`."""
    found: dict[str, str] = {}
    for role in ROLES:
        value = settings.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[role] = value
    return found


def _chat_template(path: Path, settings: dict[str, object]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: one template, or a list of named ones with a default."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(
            f"{path / 'tokenizer_config.json'}: chat_template: expected text, found {type(template).__name__}"
        )
    return template


def _eos_ids(file: Path) -> list[int]:
    value = _json_object(file).get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return [i for i in ids if isinstance(i, int)]


def _json_object(file: Path) -> dict[str, object]:
    """The object in the file; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: expected an object, found {type(value).__name__}")
    return value
