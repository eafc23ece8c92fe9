"""Executors without threads, so that a world with steps in flight runs the same each time."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Late(Future[T]):
    def __init__(self, run: Callable[[], T]) -> None:
        super().__init__()
        self._run = run

    def result(self, timeout: float | None = None) -> T:
        return self._run()


class Late(Executor):
    """Runs each call when its result is asked for: as late as can be."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return _Late(lambda: fn(*args, **kwargs))


class Early(Executor):
    """Runs each call at once; its fault waits to be asked for."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it is, it comes out of the future
            future.set_exception(error)
        return future
