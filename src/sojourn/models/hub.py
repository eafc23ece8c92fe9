"""A Hugging Face hub id becomes a directory here. Only the files that a text model needs are fetched.

Fetched once, a snapshot is used without asking the hub again; `loading.pull` asks. Which hub, which proxy and which
token are huggingface_hub's own settings. Knows nothing of what is in the files.
"""

from pathlib import Path

import huggingface_hub

from sojourn.core.errors import ModelError
from sojourn.models.progress import Progress

_WANTED = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
]
_UNWANTED = ["*/*", "consolidated*"]  # other formats' copies of the same weights
_RECORD = "sojourn-snapshot"


def known_snapshot(hub_id: str, directory: Path) -> Path | None:
    """The directory of an earlier complete fetch, if it is still there."""
    try:
        snapshot = Path(_record(hub_id, directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return snapshot if (snapshot / "config.json").is_file() else None


def fetch(hub_id: str, directory: Path, progress: Progress) -> Path:
    """Download the current snapshot (files already here are not fetched again). Raises ModelError."""
    progress.message(f"fetching {hub_id} from the Hugging Face hub")
    try:
        answer = huggingface_hub.snapshot_download(
            hub_id, cache_dir=directory, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except Exception as error:  # its own HTTP errors, httpx's and OSError share no narrower base
        raise ModelError(
            f"{hub_id}: cannot be fetched from the hub: {type(error).__name__}: {_first_line(error)}; "
            f"check the id, the network and, for gated models, that HF_TOKEN is set"
        ) from error
    snapshot = Path(str(answer))
    record = _record(hub_id, directory)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(str(snapshot), encoding="utf-8")
    return snapshot


def _record(hub_id: str, directory: Path) -> Path:
    return directory / _RECORD / hub_id.replace("/", "--")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
