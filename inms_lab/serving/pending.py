"""A request on its way: how it is sent from any thread, and what the asker holds of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from inms_lab.errors import AgentClosed
from inms_lab.serving.commands import check_request
from inms_lab.serving.request import Request

if TYPE_CHECKING:
    from inms_lab.serving.driver import Driver

T = TypeVar("T")


def send(driver: Driver, request: Request) -> Request:
    """A request enters at the next step boundary. Another thread does not wait for the step in
    flight: what is wrong with the request raises at once, and if its holder ends meanwhile, the
    request is answered with `AgentClosed`."""
    engine = driver.engine
    seq = engine.ledger.sequences[request.seq_id]
    if driver.is_inside or not seq.is_live:
        return driver.call(lambda: engine.submit(request))
    check_request(request, engine.model.vocab_size)
    request.asked_at = time.perf_counter()

    def arrive() -> None:
        if seq.is_live:
            engine.desk.ask(request)
        elif request.future.set_running_or_notify_cancel():
            request.future.set_exception(AgentClosed(f"{seq.name} is {seq.state}"))
        driver.awake.set()

    driver.post(arrive)
    return request


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

    def tell(self, heard: Callable[[T | None, BaseException | None], None]) -> None:
        """`heard(answer, None)` or `heard(None, error)` when the answer is there, on the thread
        that gives it: nothing is driven."""

        def told(future: Future[Any]) -> None:
            error = CancelledError() if future.cancelled() else future.exception()
            heard(None, error) if error is not None else heard(self._value, None)

        self.future.add_done_callback(told)

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way: await it, or call .result()"
        return f"<pending: {state}>"

    def done(self) -> bool:
        """Whether the answer is there."""
        return self.future.done()
