"""Which kind each matrix is packed to, what that costs in bytes, and what it does to the values. Decides, packs nothing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sojourn.models.checkpoint import Checkpoint
from sojourn.models.packed import MatrixKind
from sojourn.models.packing import Fidelity, Weights, choose_kind, fidelity, part_sizes

TABLES = frozenset({"embed", "head"})


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """`narrowed` and `notes` are sentences for the person: what lost precision, and what else happened."""

    kinds: Mapping[str, MatrixKind]
    weight_bytes: Mapping[str, int]  # by kind; "vectors" are norms and biases
    narrowed: tuple[str, ...]
    notes: tuple[str, ...]


def make_plan(checkpoint: Checkpoint, weights: Weights | None) -> PackingPlan:
    kinds: dict[str, MatrixKind] = {}
    sizes: Counter[str] = Counter()
    changes: Counter[tuple[str, MatrixKind, Fidelity]] = Counter()
    for name, matrix in checkpoint.matrices.items():
        kind = choose_kind(matrix.encoding, weights, is_table=name in TABLES)
        kinds[name] = kind
        sizes[kind.value] += sum(part_sizes(kind, matrix.rows, matrix.cols).values())
        changes[matrix.encoding.name, kind, fidelity(matrix.encoding, kind)] += 1
    sizes["vectors"] = sum(vector.nbytes for vector in checkpoint.vectors.values())
    narrowed, notes = [], []
    for (encoding, kind, change), count in changes.items():
        subject = f"{count} {'matrix' if count == 1 else 'matrices'} of {encoding}"
        match change:
            case Fidelity.NARROWED:
                narrowed.append(f"{subject} narrowed to {_words(kind)}: lossy, as asked for")
            case Fidelity.ROUNDED:
                notes.append(f"{subject} rounded to {_words(kind)}, finer than the file's own type")
            case Fidelity.EXACT:
                notes.append(f"{subject} kept exactly as {_words(kind)}")
    wide = [name for name in kinds if name in TABLES and kinds[name] is MatrixKind.Q8]
    if weights is Weights.FOUR_BIT and wide:
        notes.append(f"{' and '.join(wide)} kept at 8 bits: tables are not narrowed further")
    return PackingPlan(kinds, dict(sizes), tuple(narrowed), tuple(notes))


def _words(kind: MatrixKind) -> str:
    match kind:
        case MatrixKind.F32:
            return "32-bit floats"
        case MatrixKind.Q8:
            return "8-bit groups"
        case MatrixKind.Q4:
            return "4-bit groups"
        case MatrixKind.Q4M:
            return "4-bit groups with minimum"
