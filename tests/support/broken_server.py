"""`sojourn serve` whose supervisor starts `broken_engine` in place of the engine."""

from sojourn.app import serve
from sojourn.app.cli import main
from sojourn.app.supervisor import Part


def part(name: str, module: str, start: str, fds: tuple[int, ...] = ()) -> Part:
    return Part(name, "tests.support.broken_engine" if name == "engine" else module, start, fds)


if __name__ == "__main__":
    serve.Part = part  # type: ignore[assignment, misc]
    main()
