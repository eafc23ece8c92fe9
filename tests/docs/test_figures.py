"""The committed figures are what the code gives now, and every one is shown somewhere."""

import re

import pytest
from docs.figures import IMAGES, figures

FIGURES = figures()


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_up_to_date(name: str) -> None:
    assert (IMAGES / name).read_text() == FIGURES[name], "run: python -m docs.figures"


def test_every_figure_is_shown_and_every_link_leads_somewhere() -> None:
    shown = set()
    for page in IMAGES.parent.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
            shown.add((page.parent / target).name)
    assert set(FIGURES) == {path.name for path in IMAGES.iterdir()}
    assert set(FIGURES) <= shown
