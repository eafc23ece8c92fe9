"""Makes tests/data/oracle again: what transformers answers, small enough to keep. `python -m tests.oracle.make_references`

Needs the extra [oracle]. The tests that read it (`test_stored.py`) need neither torch nor transformers.

    tiny/NAME.json   configuration and tensor shapes as transformers writes them
    tiny.npz         NAME_logits: logits at `tiny.POSITIONS` of the tiny models' prompts
    MODEL.npz        prompt, positions, top_ids and top_logits there, greedy tokens after the prompt and their margins
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from sojourn.app.config import cache_dir
from sojourn.models.loading import load
from sojourn.models.packing import Weights
from tests.oracle import tiny
from tests.oracle import transformers_models as oracle
from tests.oracle.conftest import prose_ids

TOP = 16
REAL = {  # catalogue name: tokens of the prompt, positions, greedy tokens
    "smollm2": (700, [0, 1, 2, 15, 16, 63, 127, 128, 255, 400, 512, 640, 699], 64),
    "gemma3-270m": (1620, [0, 1, 127, 510, 511, 512, 513, 800, 1023, 1024, 1100, 1535, 1536, 1600, 1619], 32),
}


def describe_tiny(name: str) -> None:
    model = AutoModelForCausalLM.from_config(oracle.TINY[name])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
    shapes = {parameter: list(tensor.shape) for parameter, tensor in model.named_parameters()}
    text = json.dumps({"config": config, "shapes": shapes}, indent=1)
    (tiny.DATA / "tiny").mkdir(exist_ok=True)
    (tiny.DATA / "tiny" / f"{name}.json").write_text(text + "\n")


def tiny_logits(name: str) -> NDArray[np.float32]:
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_checkpoint(name, Path(folder))
        return oracle.logits_at(oracle.tiny_oracle(Path(folder)), tiny.prompt(name), tiny.POSITIONS)


def real(name: str) -> dict[str, NDArray[np.generic]]:
    length, positions, count = REAL[name]
    loaded = load(name, cache_dir=cache_dir(), weights=Weights.F32)
    prompt = prose_ids(loaded)[:length]
    model = oracle.real_oracle(loaded.packed)
    logits = oracle.logits_at(model, prompt, positions)
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
    tokens, margins = oracle.greedy(model, prompt, count)
    return {
        "prompt": np.array(prompt, dtype=np.int32),
        "positions": np.array(positions, dtype=np.int32),
        "top_ids": best.astype(np.int32),
        "top_logits": np.take_along_axis(logits, best, axis=-1),
        "greedy": np.array(tokens, dtype=np.int32),
        "margins": np.array(margins, dtype=np.float32),
    }


def main() -> None:
    for name in tiny.NAMES:
        describe_tiny(name)
    np.savez_compressed(tiny.DATA / "tiny.npz", **{f"{name}_logits": tiny_logits(name) for name in tiny.NAMES})
    for name in REAL:
        np.savez_compressed(tiny.DATA / f"{name}.npz", **real(name))


if __name__ == "__main__":
    main()
