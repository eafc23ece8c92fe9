"""`sojourn serve` whose supervisor starts `broken_engine` in place of the engine."""

from sojourn.app import serve
from sojourn.app.cli import main
from sojourn.app.ready import ReadyPipe
from sojourn.app.supervisor import Part


def part(name: str, module: str, start: str, fds: tuple[int, ...], ready: ReadyPipe) -> Part:
    return Part(name, "tests.support.broken_engine" if name == "engine" else module, start, fds, ready)


if __name__ == "__main__":
    serve.Part = part  # type: ignore[assignment, attr-defined]
    main()
