"""The catalogue's models, packed: the values are those that gguf's own reader and dequantisation give."""

import gguf
import numpy as np
import pytest
from tests.support.model_files import GGUF_NAMES

from sojourn.app.config import cache_dir
from sojourn.models import catalog
from sojourn.models.gguf_file import read_gguf
from sojourn.models.packed import PackedMatrix
from sojourn.models.packing import Fidelity, fidelity, part_sizes, unpack
from sojourn.models.progress import SilentProgress
from sojourn.models.rope import make_rope
from sojourn.models.store import LoadedModel

ROWS_COMPARED = 4096  # of the embeddings: all of Gemma's would take gigabytes


def first_rows(matrix: PackedMatrix, rows: int) -> PackedMatrix:
    sizes = part_sizes(matrix.kind, rows, matrix.cols)
    scales = None if matrix.scales is None else matrix.scales[: sizes["scales"] // 2]
    mins = None if matrix.mins is None else matrix.mins[: sizes["mins"] // 2]
    return PackedMatrix(
        matrix.kind, rows, matrix.cols, matrix.data[: sizes["data"] // matrix.data.itemsize], scales, mins
    )


def compare(model: LoadedModel, entry: catalog.CatalogEntry) -> dict[Fidelity, int]:
    """Compare every matrix with the file; count how each was kept."""
    file = read_gguf(catalog.fetch(entry, cache_dir() / "files", SilentProgress()))
    config, counts = model.packed.config, dict.fromkeys(Fidelity, 0)
    for name, matrix in model.packed.matrices.items():
        part = name.rpartition(".")[2]
        stored = f"blk.{name.split('.')[1]}.{GGUF_NAMES[part]}" if name.startswith("layers.") else GGUF_NAMES[part]
        tensor, rows = file.tensors[stored], min(matrix.rows, ROWS_COMPARED)
        want = gguf.dequantize(tensor.raw.reshape(tensor.shape[0], -1)[:rows], tensor.encoding)
        if config.architecture == "llama" and part in ("q", "k"):
            head_dim = config.attention.head_dim
            want = want.reshape(-1, head_dim // 2, 2, matrix.cols).swapaxes(1, 2).reshape(rows, matrix.cols)
        got = unpack(first_rows(matrix, rows))
        kept = fidelity(tensor.encoding, matrix.kind)
        counts[kept] += 1
        if kept is Fidelity.EXACT:
            np.testing.assert_array_equal(got, want, err_msg=name)
        else:
            step = np.abs(want).reshape(rows, -1, 32).max(-1) / 127
            error = np.abs(got - want).reshape(rows, -1, 32).max(-1)
            assert (error <= 0.501 * step + 1e-9).all(), name
    return counts


def test_smollm2_is_kept_bit_for_bit(smollm2: LoadedModel) -> None:
    assert compare(smollm2, catalog.SMOLLM2) == {Fidelity.EXACT: 211, Fidelity.ROUNDED: 0, Fidelity.NARROWED: 0}
    assert smollm2.info.narrowed == ()
    assert smollm2.info.parameters == 134_515_008


def test_gemma3_is_kept_within_half_a_step(gemma3: LoadedModel) -> None:
    assert compare(gemma3, catalog.GEMMA3_270M) == {Fidelity.EXACT: 91, Fidelity.ROUNDED: 36, Fidelity.NARROWED: 0}


def test_the_exact_path_holds_the_same_values(smollm2: LoadedModel, smollm2_f32: LoadedModel) -> None:
    for name, matrix in smollm2.packed.matrices.items():
        np.testing.assert_array_equal(unpack(matrix), unpack(smollm2_f32.packed.matrices[name]), err_msg=name)


def test_gemma3_in_numbers(gemma3: LoadedModel) -> None:
    config = gemma3.packed.config
    attention = config.attention
    assert [layer for layer, slides in enumerate(attention.layer_slides) if not slides] == [5, 11, 17]
    assert (attention.head_dim, attention.num_heads, attention.num_kv_heads) == (256, 4, 1)
    assert attention.sliding_window == 512
    assert attention.rope == make_rope(1e6, 256)
    assert attention.rope_sliding == make_rope(1e4, 256)
    assert attention.query_scale == pytest.approx(1 / 16)
    assert config.tied_embeddings
    assert config.embedding_scale == pytest.approx(640**0.5, rel=1e-7)
