"""The lab's side of the socket: a thread that listens, and drives the lab while requests wait.

It is not the lab's own thread, so heartbeats are heard while a step computes. Where the system has
sockets in the file system, the socket lies in a folder that only this user may enter; elsewhere it
is a port of this machine. Either way a client must know the token in the address.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from inms_lab.errors import InmsError, LabClosed, LabReadOnly, MessageRefused
from inms_lab.notebook.session import Session
from inms_lab.remote import wire
from inms_lab.serving.loop import Loop

if TYPE_CHECKING:
    from inms_lab.notebook.lab import Lab

HELLO = 5.0  # seconds in which a client must say who it is
FAREWELL = 1.0  # seconds for last answers
MAX_CLIENTS = 128
MAX_UNREAD = 4 * wire.LIMIT  # bytes that a client may leave unread
LONGEST_PATH = 100  # bytes of a socket's path, on every system


class Service:
    """Made by `lab.serve()`. `address` is what a client's `connect` wants; close it, or the lab."""

    def __init__(self, lab: Lab, tcp: bool = False) -> None:
        self.lab, self.closed = lab, False
        self._token = secrets.token_urlsafe(24)
        self._sessions: dict[Session, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_clients = 0
        self._driving = False
        self._tidy: Callable[[], object] = lambda: None
        self._loop = Loop()
        try:
            self._server, self.address = self._loop.spawn(self._listen(tcp)).result()
        except BaseException:
            self._loop.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._sessions)} clients"
        return f"<service: {state}>"

    def close(self) -> None:
        """Stop listening. Clients are told `LabClosed`; their agents end, unless the lab has."""
        if self.closed:
            return
        self.closed = True
        try:
            self._loop.spawn(self._end()).result(timeout=10 * FAREWELL)
        finally:
            self._loop.close()
            self._tidy()
            with suppress(LabClosed):
                self.lab.driver.call(lambda: None)  # what was posted before has happened

    def drive(self) -> None:
        """Drive the lab while requests wait (lab's thread only). A paused lab stays paused."""
        if not self._driving:
            self._driving = True
            self.lab.driver.spawn(self._drive())

    async def _drive(self) -> None:
        why: Exception = InmsError("nothing is left to do, and this was not answered: ask again")
        try:
            await self.lab.driver.drive(lambda: not self._is_awaited())
        except LabClosed:
            return
        except Exception as error:
            why = error
        finally:
            self._driving = False
        for session in list(self._sessions):
            session.give_up(why)

    def _is_awaited(self) -> bool:
        return any(session.waiting for session in list(self._sessions))

    # the service's own thread ---------------------------------------------------------------

    async def _listen(self, tcp: bool) -> tuple[asyncio.Server, str]:
        asyncio.get_running_loop().create_task(self._notice())
        if not tcp and hasattr(asyncio, "start_unix_server"):
            folder = tempfile.mkdtemp(prefix="inms-lab-")  # 0700
            self._tidy = weakref.finalize(self, _remove, folder, os.getpid())
            path = os.path.join(folder, "lab.sock")
            if len(os.fsencode(path)) <= LONGEST_PATH:
                server = await asyncio.start_unix_server(self._client, path, limit=wire.LIMIT)
                return server, wire.address("unix", path, self._token)
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=wire.LIMIT)
        port = server.sockets[0].getsockname()[1]
        return server, wire.address("tcp", str(port), self._token)

    async def _notice(self) -> None:
        while True:
            self.lab.keeper.notice()
            await asyncio.sleep(self.lab.keeper.interval / 2)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end; whatever is sent, only this connection suffers."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._num_clients += 1
        session = Session(self, lambda message: self._send(writer, message))
        try:
            if self._num_clients > MAX_CLIENTS:
                raise MessageRefused(f"this lab has {MAX_CLIENTS} clients already")
            await asyncio.wait_for(self._greet(reader, writer), HELLO)
            self._sessions[session] = writer
            while await self._turn(session, reader, writer):
                pass
        except TimeoutError:
            self._write(writer, _notice(MessageRefused(f"no hello came within {HELLO:g} s")))
        except InmsError as error:
            self._write(writer, _notice(error))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the connection broke: the client is gone
        finally:
            self._num_clients -= 1
            self._tasks.discard(task)
            self._sessions.pop(session, None)
            self._leave(session)
            with suppress(OSError, RuntimeError):
                writer.close()

    def _leave(self, session: Session) -> None:
        verb, cause = "expire", "its process is gone"
        if self.closed:
            verb, cause = "close", "the lab serves no longer"

        def act() -> None:
            if not session.gone:
                with suppress(LabClosed, LabReadOnly):  # everybody has ended, or nobody can
                    session.leave(verb, cause)
            self.lab.driver.awake.set()  # nobody waits for its answers any more

        with suppress(LabClosed):
            self.lab.driver.post(act)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises unless the first line is a hello with our token."""
        line = await self._line(reader)
        message = wire.decode(line)
        if wire.check(message) != "hello":
            raise MessageRefused("a client says hello first")
        if message["version"] != wire.VERSION:
            raise MessageRefused(
                f"this lab speaks version {wire.VERSION}, the client {message['version']}: use the "
                "same inms-lab in both processes"
            )
        if not hmac.compare_digest(message["token"].encode(), self._token.encode()):
            raise MessageRefused("the token is not this lab's: take the whole `service.address`")
        self._write(writer, {"id": message["id"], "ok": float(self.lab.keeper.interval)})

    async def _turn(
        self, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One line; False at the end. One that is no request is answered, and changes nothing."""
        line = await self._line(reader)
        self.lab.keeper.notice()
        if not line:
            return False
        number: Any = None
        try:
            message = wire.decode(line)
            number = message.get("id")
            number = number if type(number) is int and number >= 0 else None
            wire.check(message)
            session.take(message)
        except InmsError as error:
            self._write(writer, {"id": number, "error": wire.told(error)})
        return True

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise MessageRefused(f"a line is {wire.LIMIT:,} bytes long at most") from None
        except asyncio.IncompleteReadError:
            return b""  # cut short: whoever wrote it is gone

    def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        """From any thread. Where nobody listens any more it is dropped."""
        with suppress(LabClosed):
            self._loop.post(lambda: self._write(writer, message))

    def _write(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > MAX_UNREAD:
            writer.transport.abort()  # it sends and does not read
            return
        try:
            line = wire.encode(message)
        except MessageRefused as error:
            line = wire.encode({"id": message["id"], "error": wire.told(error)})
        writer.write(line)

    async def _end(self) -> None:
        self._server.close()
        why = LabClosed("the lab was closed" if self.lab.closed else "the lab serves no longer")
        for writer in list(self._sessions.values()):
            self._write(writer, _notice(why))
            writer.close()  # after what was written
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL)


def _notice(error: InmsError) -> dict[str, Any]:
    return {"id": None, "error": wire.told(error)}


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child ends too, and it is not the child's folder
        shutil.rmtree(folder, ignore_errors=True)
