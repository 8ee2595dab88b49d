"""Notebook kernels: one that is a client, one with a lab; they are interrupted and restarted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from clients import BEAT, PROMPT, address, eventually, held, serving
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from inms_lab.leases import BEATS

HERE = os.path.dirname(__file__)
LEASE = BEATS * BEAT  # seconds
SECONDS = 30  # for a cell


class Kernel:
    """A kernel of its own, cell by cell."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)
        self.run(f"import json, os, sys, time; sys.path.insert(0, {HERE!r})")

    def run(self, code: str, error: str = "") -> str:
        """What a cell prints; it must fail with `error`, if one is named."""
        return self.finish(self.client.execute(code), error)

    def value(self, expression: str) -> Any:
        """A value out of the kernel."""
        return json.loads(self.run(f"print(json.dumps({expression}))"))

    def finish(self, request: str, error: str = "") -> str:
        """The same for a cell that runs already."""
        text, found = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "error":
                found = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                assert found == error, text
                return text

    def close(self) -> None:
        """The end, in order."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    one = Kernel()
    try:
        yield one
    finally:
        one.client.stop_channels()
        if one.manager.has_kernel:
            one.manager.shutdown_kernel(now=True)


def test_a_kernel_that_is_a_client_is_interrupted_in_a_step_and_restarted(kernel: Kernel) -> None:
    with serving(delay=0.02) as lab:
        other, before = lab.agent("other"), held(lab)
        kernel.run(f"from inms_lab import connect\nlab = connect({address(lab)!r})")
        kernel.run("me = lab.agent('a', groups=['team']); me.read([7] * 30); child = me.fork()")
        request = kernel.client.execute("me.write(500)")
        eventually(lambda: lab.agents["a"].state == "decoding")
        pending = other.write(10)
        kernel.manager.interrupt_kernel()
        kernel.finish(request, "KeyboardInterrupt")
        assert pending.result().tokens == lab.model.generate(PROMPT, 10)
        eventually(lambda: lab.agents["a"].state == "ready")
        assert not lab.engine.desk.running, "somebody is still to be answered"
        lab.check()
        known = kernel.value("len(me.tokens)")
        assert 35 < known < 500, "it was not stopped half-way"
        assert len(kernel.value("me.write(3).tokens")) == 3, "the agent is usable"
        other.rollback(10).result()
        kernel.manager.restart_kernel(now=True)
        assert eventually(lambda: held(lab) == before) < LEASE + BEAT + 3
        assert {row.state for _, row in lab.leases} == {"ended"}
        lab.check()


def test_a_lab_in_a_kernel_keeps_its_leases_over_cells_and_lets_the_kernel_go(
    kernel: Kernel,
) -> None:
    kernel.run("from clients import *\nlab = serving(delay=0.02)")
    kernel.run("me = lab.agent('a'); other = lab.agent('b'); lease = lab.lease(me); me")
    kernel.run(f"time.sleep({2 * LEASE})")
    assert kernel.value("[row.state for _, row in lab.leases]") == ["live"]
    kernel.run("async def job():\n    with lab.lease(other): await other.write(500)")
    for code in ("me.write(500).result()", "await me.write(500)", "await job()"):
        request = kernel.client.execute(code)
        time.sleep(0.5)
        kernel.manager.interrupt_kernel()
        with pytest.raises(AssertionError):  # KeyboardInterrupt, or CancelledError
            kernel.finish(request)
        kernel.run("lab.check()")
        assert kernel.value("me.state") == "ready"
        assert kernel.value("len(me.write(2).result().tokens)") == 2
    assert kernel.value("other.state") == "reclaimed"
    assert kernel.value("[row.state for _, row in lab.leases]") == ["live", "ended"]
    folder = kernel.run("print(os.path.dirname(address(lab)).removeprefix('unix:'))").strip()
    assert os.path.isdir(folder)
    started = time.monotonic()
    kernel.close()
    assert time.monotonic() - started < 5, "the kernel had to be killed"
    assert not os.path.exists(folder), "it was not an end in order"
