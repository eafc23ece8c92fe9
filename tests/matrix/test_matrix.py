"""Overlap, who guesses, pages, chunks and retractions change nothing that is said: `make matrix` tries them all.

Every two of them together are tried with the other tests.
"""

from collections.abc import Iterator
from itertools import combinations, product

import pytest

from sojourn.app.draft_side import DraftSide
from sojourn.backends.native import NativeBackend
from sojourn.models.store import LoadedModel
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.spec.ngram import NgramDrafter
from sojourn.spec.protocol import Drafter
from tests.e2e.engines import RealEngine, Shape
from tests.matrix.cells import ALL, AXES, Cell, covering
from tests.matrix.sessions import Stateless, converse
from tests.support.world import check_all_free, check_identity

CONTEXT = 192  # tokens
TURNS = 2  # at a time
DRAFTS = 5
FEW = frozenset(covering())
stateless_runs: dict[str, Stateless] = {}


def shape_of(cell: Cell) -> Shape:
    pages = 2 * TURNS * -(-CONTEXT // cell.page_size)
    return Shape(
        page_size=cell.page_size,
        pages=(pages, pages),
        context=CONTEXT,
        chunk=cell.chunk,
        step_tokens=cell.chunk + TURNS * (1 + DRAFTS),
        seqs_max=TURNS,
        cache="radix",
        threads=1,
        retract_every=3 if cell.retracts else 0,
        depth=int(cell.overlap),
        drafts_max=0 if cell.drafts == "off" else DRAFTS,
    )


def draft_side(model: LoadedModel, shape: Shape) -> DraftSide:
    total = shape.pages[0] + NUM_RESERVED
    backend = NativeBackend(
        model.packed,
        page_size=shape.page_size,
        num_pages=(total, total),
        kv_dtype="f16",
        threads=1,
        seqs_max=shape.seqs_max,
    )
    return DraftSide(model, backend, shape.page_size, total)


def target_name(cell: Cell) -> str:
    return "smollm2_f32" if cell.drafts == "model" and cell.model == "smollm2" else cell.model


class Models:
    """The model of a cell and the one that guesses for it. SmolLM2's four-bit weights guess for the same ones as floats;
    Gemma 3, in the width of its file, guesses for itself."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def target(self, cell: Cell) -> LoadedModel:
        return self._loaded(target_name(cell))

    def guesser(self, cell: Cell) -> LoadedModel:
        return self._loaded(cell.model)

    def stateless(self, cell: Cell) -> Stateless:
        """Of the target, in pages of 16: how pages are cut is not seen."""
        return stateless_runs.setdefault(target_name(cell), Stateless(self.target(cell), shape_of(cell)))

    def _loaded(self, name: str) -> LoadedModel:
        model: LoadedModel = self._request.getfixturevalue(name)
        return model


@pytest.fixture
def models(request: pytest.FixtureRequest) -> Models:
    return Models(request)


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    stateless_runs.clear()


def cells() -> list[object]:
    return [pytest.param(cell, id=cell.name, marks=[] if cell in FEW else pytest.mark.matrix) for cell in ALL]


@pytest.mark.parametrize("cell", cells())
def test_what_is_said_is_what_the_stateless_run_says(cell: Cell, models: Models) -> None:
    shape = shape_of(cell)
    side = draft_side(models.guesser(cell), shape) if cell.drafts == "model" else None
    drafter: Drafter | None = NgramDrafter() if cell.drafts == "ngram" else None
    engine = RealEngine(models.target(cell), shape, drafter, side)
    try:
        converse(engine, models.stateless(cell), is_calm=not cell.retracts)
        check_identity(engine.cache)
        check_all_free(engine.cache)
        told = engine.scheduler.statistics()
    finally:
        engine.close()
    assert (told.accepted > 0) == (cell.drafts != "off"), told
    assert told.drafted >= told.accepted
    assert (told.zombies > 0) == cell.overlap, told
    assert (told.retractions > 0) == cell.retracts, told


def test_the_few_cells_have_every_two_values_together() -> None:
    together = set().union(*(cell.pairs() for cell in FEW))
    for (one, values), (other, others) in combinations(AXES.items(), 2):
        for value, another in product(values, others):
            assert ((one, value), (other, another)) in together
    assert len(FEW) < 12
    assert len(ALL) == 96
