"""Print the requirements of one of the project's extras, one a line.

`pip install .[extra]` would build the package again; a stamp of the Makefile needs only what the extra names.
"""

import re
import sys
import tomllib
from pathlib import Path

SELF = re.compile(r"sojourn\[(?P<extras>[^]]+)\]")


def requirements(extras: dict[str, list[str]], name: str) -> list[str]:
    found: list[str] = []
    for requirement in extras[name]:
        nested = SELF.fullmatch(requirement)
        if nested is None:
            found.append(requirement)
            continue
        for inner in nested["extras"].split(","):
            found += requirements(extras, inner.strip())
    return found


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    print("\n".join(requirements(project["optional-dependencies"], sys.argv[1])))
