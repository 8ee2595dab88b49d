"""The desk: requests that wait, requests that run, and their answers. No bookkeeping of blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from inms_lab.books.sequence import Sequence
from inms_lab.serving.request import Request


class Desk:
    """Requests by holder, in the order in which they were asked."""

    def __init__(self) -> None:
        self.queues: dict[int, deque[Request]] = {}
        self.running: dict[int, list[Request]] = {}
        self.hook_errors: list[BaseException] = []  # of callbacks: kept, never fatal to a step

    def ask(self, request: Request) -> None:
        """Queue a request behind the holder's earlier ones."""
        request.asked_at = request.asked_at or time.perf_counter()
        self.queues.setdefault(request.seq_id, deque()).append(request)

    def first(self, seq_id: int) -> Request | None:
        """The holder's oldest waiting request, which goes on waiting."""
        queue = self.queues.get(seq_id)
        if not queue:
            self.queues.pop(seq_id, None)
            return None
        return queue[0]

    def next(self, seq_id: int) -> Request | None:
        """The holder's oldest waiting request that nobody cancelled."""
        queue = self.queues.get(seq_id)
        while queue:
            request = queue.popleft()
            if request.future.set_running_or_notify_cancel():
                return request
        self.queues.pop(seq_id, None)
        return None

    def wanted(self) -> set[int]:
        """The records that waiting requests are to attach, and all holders that are asked."""
        records = {r.record for queue in self.queues.values() for r in queue if r.record >= 0}
        return records | self.queues.keys() | self.running.keys()

    def start(self, request: Request, seq: Sequence) -> None:
        """A request that takes steps has entered the books."""
        request.target = seq.num_tokens
        self.running.setdefault(request.seq_id, []).append(request)

    def current(self, seq_id: int) -> Request:
        """The request that tokens or logits are computed for."""
        return self.running[seq_id][-1]

    def token(self, seq_id: int, token: int, over: bool) -> None:
        """A token was generated for the holder's current request."""
        request = self.current(seq_id)
        if not request.generated:
            request.first_token_at = time.perf_counter()
        request.generated.append(token)
        if request.on_token is not None:
            try:
                request.on_token(token)
            except BaseException as error:  # a viewer's fault is not the engine's
                self.hook_errors.append(error)
        if over:
            self._finish(request, list(request.generated))

    def logits(self, seq_id: int, row: object) -> None:
        """The logits that the holder's current request asked for."""
        self._finish(self.current(seq_id), row)

    def computed(self, seq: Sequence) -> None:
        """Texts of this holder whose KV is complete are answered."""
        for request in list(self.running.get(seq.seq_id, ())):
            target = min(request.target, seq.wanted)  # less, after a rollback
            if request.verb == "append" and seq.num_computed >= target:
                self._finish(request, request.target)

    def refuse_rest(self, seq_id: int, error: Exception) -> None:
        """What was asked behind a refused request counted on it: it gets the same error."""
        _answer(self.queues.pop(seq_id, ()), error)

    def drop(self, seq_id: int, error: Exception) -> None:
        """The holder has ended: whatever it still asks for is answered with `error`."""
        _answer([*self.running.pop(seq_id, ()), *self.queues.pop(seq_id, ())], error)

    def _finish(self, request: Request, result: object) -> None:
        running = self.running[request.seq_id]
        running.remove(request)
        if not running:
            del self.running[request.seq_id]
        request.future.set_result(result)


def _answer(requests: Iterable[Request], error: Exception) -> None:
    for request in requests:
        if not request.future.done():  # its caller may have cancelled it
            request.future.set_exception(error)
