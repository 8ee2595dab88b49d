"""The process that agents are forked from. It has imported everything, has built the model on the
shared weights and has read none of them, runs no parallel operation, and has frozen the collector.

Run as a program with the number of a connected socket; `parent.py` starts it and talks to it. It
keeps the leases of its agents (the lab's own code, `leases.py`): each agent beats through a pipe,
whose end tells at once of its death. It goes when its creator has gone and no agent is left.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from inms_lab.errors import BadInput, InmsError
from inms_lab.leases import Leases, Row
from inms_lab.parameters import child
from inms_lab.parameters.region import View
from inms_lab.parameters.settings import Settings
from inms_lab.parameters.travel import file_from, unpacked
from inms_lab.parameters.weights import module_on


@dataclass
class Ward:
    """An agent's process: whose lease it has, its pid and the pipe that it beats through."""

    holder: Hashable
    pid: int
    beats: int
    cause: str = ""


class Nursery:
    """Made with the line to the creator, who has sent what it is for."""

    def __init__(self, line: Connection) -> None:
        self.line = line
        sys.path[:] = line.recv()
        about = cloudpickle.loads(line.recv_bytes())
        self.base = unpacked(about, line)
        self.settings: Settings = about["settings"]
        for name in self.settings.preload:
            try:
                import_module(name)
            except ImportError as error:
                raise BadInput(f"preload: {name} cannot be imported ({error})") from error
        self.view = View(about["layout"].num_bytes)
        self.view.lay(self.base.pieces)
        self.model = module_on(about["make"], self.view, about["layout"])
        self.leases = Leases(self.settings.heartbeat_interval)
        self.wards: dict[int, Ward] = {}  # by epoch
        self.num_made = 0
        self.has_creator = True
        self.selector = selectors.DefaultSelector()
        self.selector.register(line, selectors.EVENT_READ, None)
        gc.collect()
        gc.disable()
        gc.freeze()

    def serve(self) -> None:
        """Until nobody is left."""
        while self.has_creator or self.wards:
            wait = self.settings.heartbeat_interval / 2 if self.wards else None
            for key, _ in self.selector.select(wait):
                if key.data is None:
                    self.answer()
                else:
                    self.hear(key.data)
            self.end_due(self.settings.auto_recovery)

    def answer(self) -> None:
        """One request of the creator."""
        try:
            verb, fields = cloudpickle.loads(self.line.recv_bytes())
            reply: tuple[str, Any] = ("ok", getattr(self, "do_" + verb)(**fields))
        except EOFError:
            self.leave()
            return
        except OSError as error:
            reply = ("system", error.strerror)
        except InmsError as error:
            reply = ("error", error)
        except Exception as error:  # of a kind that the creator may not know
            reply = ("error", RuntimeError(repr(error)))
        try:
            self.line.send(reply)
        except OSError:
            self.leave()

    def leave(self) -> None:
        """The creator has gone."""
        self.selector.unregister(self.line)
        self.has_creator = False

    def do_fork(self, name: str, threads: int, seed: int) -> tuple[int, int]:
        """A new agent; gives its pid and its epoch."""
        with Connection(file_from(self.line)) as line:
            self.num_made += 1
            holder = (name, self.num_made)
            hears, beats = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                os.close(hears)
                os.close(beats)
                raise
            if not pid:
                self.become(line, beats, hears, name, threads, seed)
            os.close(beats)
        epoch = self.leases.grant(holder).epoch
        self.wards[epoch] = Ward(holder, pid, hears)
        self.selector.register(hears, selectors.EVENT_READ, epoch)
        return pid, epoch

    def become(
        self, line: Connection, beats: int, hears: int, name: str, threads: int, seed: int
    ) -> None:
        """In the child, which never comes back from here."""
        code = 1
        try:
            self.selector.close()
            self.line.close()
            os.close(hears)
            for ward in self.wards.values():
                os.close(ward.beats)
            torch.set_num_threads(threads)
            me = child.Me(name, self.model, self.view, self.base, line)
            code = child.live(me, beats, self.settings.heartbeat_interval, seed)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def do_lay(self, about: dict[str, Any]) -> None:
        """Agents that are made from now on have this version."""
        version = unpacked(about, self.line)
        try:
            self.view.lay(version.pieces)
        except InmsError:
            self.view.lay(self.base.pieces)
            raise
        self.base = version

    def do_rows(self) -> list[Row]:
        """All leases."""
        return self.leases.rows()

    def do_recover(self) -> list[str]:
        """End all whose lease has run out."""
        return self.end_due(True)

    def hear(self, epoch: int) -> None:
        """A beat of an agent, or the end of its pipe: then it is dead, or dies now."""
        ward = self.wards[epoch]
        if os.read(ward.beats, 4096):
            self.leases.beat(ward.holder, epoch)
            return
        self.selector.unregister(ward.beats)
        os.close(ward.beats)
        with suppress(ProcessLookupError):
            os.kill(ward.pid, signal.SIGKILL)  # it let its pipe go; usually it is gone already
        _, status = os.waitpid(ward.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        told = f"killed by signal {-code}" if code < 0 else f"its process ended ({code})"
        del self.wards[epoch]
        self.leases.release(ward.holder, epoch, ward.cause or told)

    def end_due(self, ends: bool) -> list[str]:
        """Kill whose lease has run out, if `ends`: what they had goes with their process."""
        ended = []
        for lease, cause in self.leases.due():
            ward = self.wards.get(lease.epoch)
            if ends and ward is not None and not ward.cause:
                ward.cause = cause
                with suppress(ProcessLookupError):
                    os.kill(ward.pid, signal.SIGKILL)
                ended.append(str(ward.holder[0]))  # type: ignore[index]
        return ended


def main(socket_number: int) -> None:
    """The program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the creator's affair
    line = Connection(socket_number)
    try:
        nursery = Nursery(line)
    except Exception as error:
        line.send(("error", error if isinstance(error, InmsError) else RuntimeError(repr(error))))
        raise
    line.send(("ok", nursery.view.address))
    nursery.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
