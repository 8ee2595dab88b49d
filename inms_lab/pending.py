"""A request on its way, as a notebook or a program holds it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from inms_lab.driver import Driver

T = TypeVar("T")


class Pending(Generic[T]):
    """A request on its way. `await` it anywhere, or not at all: it happens all the same."""

    def __init__(
        self, driver: Driver, future: Future[Any], then: Callable[[Any], T] | None = None
    ) -> None:
        self.driver, self.future, self._then = driver, future, then
        self._value: Any = None
        future.add_done_callback(self._finish)

    def _finish(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            result = future.result()
            self._value = self._then(result) if self._then else result

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.driver.wait_for(self.future).__await__()
        return self._value  # type: ignore[no-any-return]

    def result(self, timeout: float | None = None) -> T:
        """Drive the lab until the answer is there; for code without `await`."""
        self.driver.drive_sync(self.future, timeout)
        return self._value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way: await it, or call .result()"
        return f"<pending: {state}>"

    def done(self) -> bool:
        """Whether the answer is there."""
        return self.future.done()
