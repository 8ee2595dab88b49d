"""Whatever comes out of a socket: a clear error, bounded memory, and the service lives on."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from clients import BEAT, PROMPT, address, eventually, held, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inms_lab import connect
from inms_lab.errors import InmsError, MessageRefused
from inms_lab.leases import BEATS
from inms_lab.notebook import service
from inms_lab.notebook.lab import Lab
from inms_lab.remote import wire

SECONDS = 10.0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with serving() as lab:
        yield lab


@pytest.fixture(autouse=True)
def lives_on(lab: Lab) -> Iterator[None]:
    """After each test a new client is served, and nothing is held that was not before."""
    before = held(lab)
    yield
    with connect(address(lab)) as client:
        assert client.agent("afterwards").write(3).tokens == lab.model.generate(PROMPT, 3)
    eventually(lambda: held(lab) == before)
    lab.check()
    assert not lab.engine.desk.hook_errors


class Raw:
    """A connection that says whatever it wants."""

    def __init__(self, lab: Lab, greet: bool = True) -> None:
        _, path, self.token = wire.split(address(lab))
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")
        if greet:
            hello = {"id": 0, "op": "hello", "version": wire.VERSION, "token": self.token}
            assert self.ask(hello)["ok"] == BEAT

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, message: Any) -> Any:
        """The answer to one message."""
        self.send(json.dumps(message).encode() + b"\n")
        return self.hear()

    def hear(self) -> Any:
        """The next answer; None at the end."""
        line = self.file.readline()
        return json.loads(line) if line else None

    def error(self, message: Any) -> str:
        """The class of the error that a message is answered with."""
        name, text = self.ask(message)["error"]
        assert len(text) > 15
        return str(name)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()


# what is no message ------------------------------------------------------------------------------

DEEP = b"[" * 200_000
LINES = [
    b"", b" ", b"null", b"7", b'"text"', b"[]", b"{", b"{}", b"\xff\xfe\x00", b"\x00" * 100,
    b'{"id": 1}', b'{"id": NaN, "op": "bye"}', b'{"id": 1, "op": Infinity}', b'{"id": 1e999}',
    DEEP, b'{"a":' * 100_000, b"9" * 10_000, b'{"id": ' + b"9" * 5000 + b"}",
    b'{"id": 1, "op": "open", "name": "\\ud800", "groups": []}',
    b'{"id": 1, "op": "open", "name": "a", "groups": ["\\udfff"]}',
    b'{"id": 1, "op": "' + b"x" * 100_000 + b'"}',
    b'{"id": -1, "op": "bye"}', b'{"id": true, "op": "bye"}', b'{"id": 1.0, "op": "bye"}',
    b'{"id": 1, "op": "__init__"}', b'{"id": 1, "op": "_own"}', b'{"id": 1, "op": ["bye"]}',
    b'{"id": 1, "op": "bye", "more": 1}',
]  # fmt: skip


def test_lines_that_are_no_requests_are_answered_and_the_connection_lives(lab: Lab) -> None:
    with Raw(lab) as raw:
        for line in LINES:
            raw.send(line + b"\n")
            answer = raw.hear()
            assert answer["error"][0] == "MessageRefused", line[:60]
        assert raw.ask({"id": 5, "op": "beat", "agents": []}) == {"id": 5, "ok": []}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_objects_are_refused_or_harmless(lab: Lab, data: st.DataObject) -> None:
    """Valid names of operations and fields, with values of any kind, in any combination."""
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    values = st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )
    op = data.draw(st.sampled_from(list(wire.OPS)))
    message = {
        name: data.draw(values | st.integers(0, 9) | st.just([]) | st.just("a"))
        for name in data.draw(st.sets(st.sampled_from([*wire.OPS[op], "id"])))
    }
    message |= data.draw(st.sampled_from([{}, {"id": 3}])) | {"op": op}
    with Raw(lab) as raw:
        answer = raw.ask(message)
        assert set(answer) <= {"id", "ok", "error"}
        assert "ok" in answer or answer["error"][0] != "InmsError", answer


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300), greet=st.booleans())
def test_random_bytes_and_lines_cut_short(lab: Lab, data: bytes, greet: bool) -> None:
    with Raw(lab, greet) as raw:
        raw.send(data)
        raw.socket.shutdown(socket.SHUT_WR)
        while (answer := raw.hear()) is not None:
            assert answer["error"][0] == "MessageRefused"


def test_every_field_has_its_type_and_its_bounds() -> None:
    """Each operation with right values passes; with any one field wrong or away it does not."""
    right: dict[str, Any] = {
        "agent": 1, "epoch": 2, "number": 3, "text": "a", "role": None, "group": "g",
        "max_tokens": 3, "temperature": 0.5, "top_p": 1, "seed": -1, "stop": True,
        "stream": False, "num_tokens": 4, "name": "n", "groups": ["g"], "agents": [[1, 2]],
        "version": 1, "token": "t",
    }  # fmt: skip
    wrong: dict[str, list[Any]] = {
        "agent epoch number version": [None, -1, 1.0, True, 1 << 53],
        "max_tokens seed num_tokens": [None, 1.0, True, "1", 1 << 53],
        "temperature top_p": [None, True, "1", float("nan"), 1e300],
        "stop stream": [None, 0, "yes"],
        "group name token": [None, 1, ["a"], "\ud800"],
        "text": [None, 1, [1.5], [True], [[1]], {}, "\udfff", [1 << 60]],
        "role": [1, ["user"], True, "\ud800"],
        "groups": [None, "g", [1], ["g"] * 1000],
        "agents": [None, [1], [[1]], [[1, 2, 3]], [[1, "2"]], [[1, 2]] * 1000],
    }
    wrong = {name: values for names, values in wrong.items() for name in names.split()}
    for op, fields in wire.OPS.items():
        good = {"id": 0, "op": op} | {name: right[name] for name in fields}
        assert wire.check(good) == op
        for name in [*fields, "id", "op"]:
            with pytest.raises(MessageRefused):
                wire.check({k: v for k, v in good.items() if k != name})
        for name in fields:
            for value in wrong[name]:
                with pytest.raises(MessageRefused, match=name):
                    wire.check(good | {name: value})


# who may speak -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"token": "another"}, {"version": 99}, {"op": "bye"}])
def test_without_the_right_hello_nothing_is_listened_to(lab: Lab, change: dict[str, Any]) -> None:
    with Raw(lab, greet=False) as raw:
        hello = {"id": 0, "op": "hello", "version": wire.VERSION, "token": raw.token} | change
        wanted = {"id": 0, "op": "bye"} if "op" in change else hello
        opens = b'{"id": 1, "op": "open", "name": "never", "groups": []}\n'
        raw.send(json.dumps(wanted).encode() + b"\n" + opens)
        assert raw.hear()["error"][0] == "MessageRefused"
        with suppress(ConnectionError):  # it was closed with the rest unread
            assert raw.hear() is None
    assert "never" not in lab.agents


def test_who_says_nothing_is_sent_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HELLO", 0.1)
    with Raw(lab, greet=False) as raw:
        assert "no hello" in raw.hear()["error"][1]
        assert raw.hear() is None


def test_too_many_clients_are_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_CLIENTS", 2)
    eventually(lambda: lab.serve()._num_clients == 0)
    with Raw(lab), Raw(lab), Raw(lab, greet=False) as third:
        assert "2 clients" in third.hear()["error"][1]


def test_foreign_agents_old_epochs_and_duplicates_change_nothing(lab: Lab) -> None:
    with Raw(lab) as mine, Raw(lab) as other:
        agent, epoch = mine.ask({"id": 1, "op": "open", "name": "a", "groups": []})["ok"]
        to = {"agent": agent, "epoch": epoch, "number": 1}
        read = {"id": 2, "op": "read", "text": [7] * 9, "role": None}
        assert mine.ask(read | to)["ok"] == len(PROMPT) + 9
        tokens = lab.agents["a"].tokens
        assert other.error(read | to | {"number": 9}) == "LeaseExpired"
        assert other.ask({"id": 3, "op": "beat", "agents": [[agent, epoch]]})["ok"] == [
            [agent, epoch]
        ]
        assert mine.error(read | to) == "MessageRefused", "a duplicate"
        assert mine.error(read | to | {"number": 0}) == "MessageRefused", "late"
        assert mine.error(read | to | {"number": 2, "epoch": epoch - 1}) == "LeaseExpired"
        assert mine.error(read | to | {"number": 3, "epoch": epoch + 1}) == "LeaseExpired"
        assert mine.error(read | to | {"number": 4, "agent": agent + 999}) == "LeaseExpired"
        assert mine.error({"id": 4, "op": "hello", "version": 1, "token": mine.token}) == (
            "MessageRefused"
        )
        assert lab.agents["a"].tokens == tokens
        assert mine.ask({"id": 5, "op": "state"} | to | {"number": 5})["ok"] == "ready"


def test_a_client_that_is_not_heard_for_a_lease_is_late_with_everything(lab: Lab) -> None:
    """It is connected all the while: nothing but its beats tells that it lives."""
    with Raw(lab) as raw:
        agent, epoch = raw.ask({"id": 1, "op": "open", "name": "a", "groups": []})["ok"]
        to = {"agent": agent, "epoch": epoch}
        raw.ask({"id": 2, "op": "read", "text": [7] * 9, "role": None, "number": 1} | to)
        for _ in range(2 * BEATS):
            time.sleep(BEAT)
            assert raw.ask({"id": 3, "op": "beat", "agents": [[agent, epoch]]})["ok"] == []
        assert lab.agents["a"].state == "ready"
        eventually(lambda: lab.agents["a"].state == "reclaimed", (BEATS + 1) * BEAT + 3)
        lost = [[agent, epoch]]
        assert raw.ask({"id": 4, "op": "beat", "agents": lost})["ok"] == lost
        assert raw.error({"id": 5, "op": "write", "number": 2} | to | WRITE) == "LeaseExpired"
        assert raw.error({"id": 6, "op": "close", "number": 3} | to) == "LeaseExpired"


WRITE: dict[str, Any] = {
    "max_tokens": 200, "role": None, "temperature": 0, "top_p": 1, "seed": 0,
    "stop": True, "stream": True,
}  # fmt: skip

# how much ----------------------------------------------------------------------------------------


def test_a_line_without_end_is_cut_off_and_takes_no_memory(lab: Lab) -> None:
    data = b"x" * 64 * wire.LIMIT
    tracemalloc.start()
    try:
        with Raw(lab) as raw:
            with pytest.raises(ConnectionError):
                raw.send(data)
            answer = raw.hear()
            assert answer["error"][0] == "MessageRefused"
            assert f"{wire.LIMIT:,}" in answer["error"][1]
        assert tracemalloc.get_traced_memory()[1] < 8 * wire.LIMIT
    finally:
        tracemalloc.stop()


def test_who_sends_and_does_not_read_is_cut_off(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_UNREAD", 10_000)
    with Raw(lab) as raw, pytest.raises(ConnectionError):
        raw.send(b"nonsense\n" * 200_000)


def test_requests_without_end_are_refused_and_the_first_are_carried_out(lab: Lab) -> None:
    with Raw(lab) as raw:
        agent, epoch = raw.ask({"id": 0, "op": "open", "name": "a", "groups": []})["ok"]
        lab.controls.pause()
        count = wire.MAX_WAITING + 20
        for number in range(1, count + 1):
            message = {"id": number, "op": "read", "text": [1], "role": None, "number": number}
            raw.send(json.dumps(message | {"agent": agent, "epoch": epoch}).encode() + b"\n")
        refused = [raw.hear() for _ in range(20)]
        assert {answer["error"][0] for answer in refused} == {"MessageRefused"}
        assert len(lab.agents["a"].tokens) <= len(PROMPT) + 1
        lab.controls.resume()
        done = sorted(raw.hear()["id"] for _ in range(wire.MAX_WAITING))
        assert done == list(range(1, wire.MAX_WAITING + 1))
        assert len(lab.agents["a"].tokens) == len(PROMPT) + wire.MAX_WAITING


def test_agents_without_end_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_AGENTS", 4)
    with connect(address(lab)) as client:
        agents = [client.agent(f"a{number}") for number in range(4)]
        with pytest.raises(InmsError, match="4 agents at most"):
            client.agent("one more")
        with pytest.raises(InmsError, match="4 agents at most"):
            agents[0].fork()
        agents[1].close()
        client.agent("one more")


def test_many_clients_that_break_off_at_random_leave_nothing(lab: Lab) -> None:
    rng = random.Random(0)

    def work(name: str) -> None:
        for number in range(12):
            with Raw(lab) as raw:
                made = {"id": 1, "op": "open", "name": f"{name}{number}", "groups": ["team"]}
                agent, epoch = raw.ask(made)["ok"]
                for turn, op in enumerate(rng.choices(("read", "write", "fork"), k=3)):
                    to = {"id": 2 + turn, "agent": agent, "epoch": epoch, "number": turn}
                    fields = {"read": {"text": [7] * 9, "role": None}, "write": WRITE, "fork": {}}
                    line = json.dumps({"op": op} | to | fields[op]).encode() + b"\n"
                    raw.send(line[: rng.choice((len(line), len(line), len(line) // 2))])

    threads = [threading.Thread(target=work, args=(f"t{n}-",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# the other way round -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        *(b"\xff\n", b"[]\n", b"7\n", DEEP[:1000] + b"\n", b"x" * (2 * wire.LIMIT), b"{}\n", b""),
        *(b'{"id": 0}\n', b'{"id": 0, "error": 7}\n', b'{"id": null, "error": []}\n'),
        *(b'{"id": 0, "ok": "soon"}\n', b'{"id": 0, "error": ["SystemExit", "x"]}\n'),
    ],
)
def test_a_client_of_something_that_is_no_lab_says_so(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                peer.recv(1000)
                peer.sendall(answer)
                time.sleep(0.25)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(InmsError) as raised:
            connect(f"tcp:{server.getsockname()[1]}#token", timeout=0.2)
        assert len(str(raised.value)) > 0
        thread.join(5)
