"""Code of a student's, for so many seconds and no longer."""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """The time was over before the code was."""


def limited(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, interrupted after `seconds` as by the stop button: `TookTooLong`."""
    lock, thread = threading.Lock(), threading.get_ident()
    state = {"rung": False, "done": False}

    def ring() -> None:
        with lock:
            if state["done"]:
                return
            state["rung"] = True
            if thread != threading.main_thread().ident:
                stop = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), stop)
            elif hasattr(signal, "pthread_kill"):  # a true signal wakes what sleeps, too
                signal.pthread_kill(thread, signal.SIGINT)
            else:
                _thread.interrupt_main()

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        try:
            return function(*args)
        finally:
            with lock:
                state["done"] = True
    except KeyboardInterrupt:
        if state["rung"]:
            raise TookTooLong(f"stopped after {seconds:g} seconds") from None
        raise
    finally:
        timer.cancel()
