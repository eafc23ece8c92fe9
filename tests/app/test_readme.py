"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.usefixtures("smollm2")
def test_the_library_example_runs(example: str) -> None:
    process = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    cached = re.search(r"(\d+) of (\d+) prompt tokens were cached", process.stdout)
    assert cached is not None
    assert 0 < int(cached[1]) < int(cached[2])


def test_the_targets_it_names_are_those_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    assert set(re.findall(r"^\| `make ([a-z0-9-]+)`", README, re.MULTILINE)) == targets - {"help", "clean"}


def test_the_packages_it_names_are_those_of_the_source() -> None:
    layout = README.partition("## Layout")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\| (`.*?) \|", layout, re.MULTILINE))))
    packages = {path.parent.name for path in (ROOT / "src" / "sojourn").glob("*/__init__.py")}
    assert named == packages
