"""House laws that a linter does not know. One pass over the source; each complaint names its line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "sojourn"
CONTROL = {"core", "pages", "cache", "scheduler", "sessions", "audit"}
KNOW_SESSIONS = {"sessions", "api", "client", "app"}
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
BANNED_IN_CONTROL = {"getattr", "hasattr", "setattr", "print"}
NONDETERMINISTIC = {"time", "random", "uuid", "threading", "asyncio", "secrets"}
CLOCK_OR_CHANCE = {"random", "uuid", "secrets", "time"}  # outside app/ they are arguments
NATIVE_SUFFIXES = {".cpp", ".h", ".cmake"}
MAY_READ_ENVIRONMENT = {"app/config.py"}
SESSION = re.compile("session", re.IGNORECASE)
LEFT_OPEN = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def package_of(where: Path) -> str:
    return where.parts[0] if len(where.parts) > 1 else ""


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def line_complaints(where: Path, text: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield f"{where} is over {FILE_LINES_MAX} lines"
    for number, line in enumerate(lines, 1):
        if package_of(where) not in KNOW_SESSIONS and SESSION.search(line):
            yield f"{where}:{number} knows about sessions"
        if LEFT_OPEN.search(line):
            yield f"{where}:{number} leaves something open"


def node_complaints(where: Path, node: ast.AST) -> Iterator[str]:
    package = package_of(where)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{where}:{node.lineno} {node.name} is over {FUNCTION_LINES_MAX} lines"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if package in CONTROL and name in BANNED_IN_CONTROL:
            yield f"{where}:{node.lineno} {name}() in the control plane"
        if name == "getattr" and len(node.args) > 2:
            yield f"{where}:{node.lineno} getattr with a default hides a missing attribute"
    reads_environment = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    if reads_environment and where.as_posix() not in MAY_READ_ENVIRONMENT:
        yield f"{where} reads the environment; app/config.py does"
    banned = NONDETERMINISTIC if package in CONTROL else CLOCK_OR_CHANCE if package != "app" else set()
    for name in imported(node):
        if name.split(".")[0] in banned:
            yield f"{where} imports {name}; take a clock or a seed as an argument"


def complaints(where: Path, text: str) -> list[str]:
    tree = ast.parse(text)
    if where.name == "__init__.py":
        if len(where.parts) == 1:
            return []
        return [f"{where} is not empty"] if text.strip() else []
    found = list(line_complaints(where, text))
    if not ast.get_docstring(tree):
        found.append(f"{where}:1 no module docstring")
    for node in ast.walk(tree):
        found += node_complaints(where, node)
    return found


def test_the_source_keeps_the_house_laws() -> None:
    paths = sorted(SRC.rglob("*.py"))
    assert paths
    found = [c for path in paths for c in complaints(path.relative_to(SRC), path.read_text())]
    assert not found, "\n".join(found)


def test_native_files_and_tests_stay_readable() -> None:
    paths = [p for p in (ROOT / "native").rglob("*") if p.suffix in NATIVE_SUFFIXES]
    paths += (ROOT / "tests").rglob("*.py")
    long = [f"{p.relative_to(ROOT)}" for p in paths if len(p.read_text().splitlines()) > FILE_LINES_MAX]
    assert not long, f"over {FILE_LINES_MAX} lines: {', '.join(long)}"


def test_tests_do_not_sleep() -> None:
    paths = [p for p in sorted((ROOT / "tests").rglob("*.py")) if p != Path(__file__)]
    sleeping = [str(p.relative_to(ROOT)) for p in paths if re.search(r"\bsleep\(", p.read_text())]
    assert not sleeping, sleeping


@pytest.mark.parametrize(
    ("where", "text", "complaint"),
    [
        ("pages/x.py", "x = 1\n", "no module docstring"),
        ("pages/x.py", '"""A."""\nimport time\n', "take a clock"),
        ("models/x.py", '"""A."""\nfrom random import choice\n', "take a clock"),
        ("engine/x.py", '"""A session."""\n', "knows about sessions"),
        ("engine/x.py", '"""A."""\nsession_id = 1\n', "knows about sessions"),
        ("cache/x.py", '"""A."""\nfrom a import SessionSlot\n', "knows about sessions"),
        ("cache/x.py", '"""A."""\nprint(1)\n', "control plane"),
        ("engine/x.py", '"""A."""\ngetattr(x, "y", 0)\n', "missing attribute"),
        ("app/x.py", '"""A."""\nimport os\nos.environ["A"]\n', "environment"),
        ("app/x.py", '"""A."""\n# TODO later\n', "open"),
        ("app/x.py", '"""A."""\n' + "x = 1\n" * FILE_LINES_MAX, "lines"),
        ("app/x.py", '"""A."""\ndef f():\n' + "    x = 1\n" * FUNCTION_LINES_MAX, "lines"),
        ("app/__init__.py", "x = 1\n", "not empty"),
    ],
)
def test_each_law_can_fail(where: str, text: str, complaint: str) -> None:
    found = complaints(Path(where), text)
    assert any(complaint in one for one in found), found


def test_lawful_source_has_no_complaints() -> None:
    assert complaints(Path("app/x.py"), '"""A session."""\nimport time\n') == []
