"""Agents of other processes: the same agents, the same errors, and every way in which they end."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from clients import BEAT, HEAD, PROMPT, Process, address, eventually, held, serving

from inms_lab import connect
from inms_lab.books.events import Commanded
from inms_lab.errors import (
    AgentClosed,
    BadInput,
    EmptyText,
    InmsError,
    LabClosed,
    LabUnreachable,
    LeaseExpired,
    MessageRefused,
    NotAMember,
    StepInterrupted,
    TokenOutOfRange,
    UnknownGroup,
)
from inms_lab.leases import BEATS
from inms_lab.notebook import service
from inms_lab.notebook.lab import Lab
from inms_lessons.small_labs import word_lab

README = Path(__file__).resolve().parents[1] / "README.md"
LEASE = BEATS * BEAT  # seconds
SLACK = 3.0  # seconds that a busy machine may take for what is due now
WATCHDOG = 60  # seconds
START = 0.3  # seconds from the start of Python to a connected agent


@pytest.fixture(autouse=True)
def hangs_never() -> Iterator[None]:
    """What waits for ever fails."""

    def fail(*_: object) -> None:
        raise AssertionError(f"this test has hung for {WATCHDOG} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(WATCHDOG)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with serving() as lab:
        yield lab


@pytest.fixture
def slow() -> Iterator[Lab]:
    """A step takes 20 ms."""
    with serving(delay=0.02) as lab:
        yield lab


def back(lab: Lab, before: dict[str, int], limit: float = LEASE + BEAT) -> None:
    """All blocks come back, within one lease and one tick."""
    took = eventually(lambda: held(lab) == before)
    assert took < limit + SLACK, f"the blocks came back after {took:.2f} s"
    lab.check()


def stop(pid: int) -> None:
    """SIGSTOP: afterwards none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    threads = [psutil.Process(thread.id) for thread in psutil.Process(pid).threads()]
    eventually(lambda: {thread.status() for thread in threads} == {psutil.STATUS_STOPPED})


def last_end(lab: Lab) -> tuple[str, str]:
    verbs = ("close", "fail", "expire")
    ends = [e for e in lab.log.events if isinstance(e, Commanded) and e.verb in verbs]
    return ends[-1].verb, ends[-1].cause


# the same agents ---------------------------------------------------------------------------------


def story(agent: Any, team: Any) -> list[object]:
    """What an agent does, here or there: `ask` waits where there is something to wait for."""

    def ask(made: Any) -> Any:
        return made.result() if hasattr(made, "result") else made

    found: list[object] = [ask(agent.read([7] * 9)), ask(agent.attach(team))]
    found += [ask(agent.write(5)).tokens, str(ask(agent.write(3)))]
    child = ask(agent.fork())
    found += [ask(child.write(4, temperature=0.9, seed=3)).tokens, child.tokens, child.text]
    found += [ask(agent.rollback(4)), agent.tokens, agent.state, ask(child.close())]
    return [*found, ask(agent.write(2)).tokens, agent.text]


def test_a_remote_agent_is_the_agent_and_leaves_the_same_log() -> None:
    logs, founds = [], []
    for remote in (False, True):
        with serving() as lab:
            team = lab.group("team")
            if remote:
                client = connect(address(lab))
                agent = client.agent("a", groups=["team"])
                assert agent.publish("team", [9] * 8) == "team/1"
                founds.append(story(agent, "team"))
            else:
                agent = lab.agent("a", groups=["team"])
                team.publish([9] * 8, by=agent)
                founds.append(story(agent, team))
            logs.append([repr(event) for event in lab.log.events])
    assert founds[0] == founds[1]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


def test_pieces_of_text_come_while_it_writes(slow: Lab) -> None:
    with connect(address(slow)) as client, client.agent("a") as me:
        pieces: list[tuple[str, float]] = []
        out = me.write(6, on_token=lambda text: pieces.append((text, time.monotonic())))
        assert [text for text, _ in pieces] == [str(token) for token in out.tokens]
        assert pieces[-1][1] - pieces[0][1] > 0.05, "they came all at once"

        def fail(text: str) -> None:
            raise KeyError(text)

        with pytest.raises(KeyError):
            me.write(500, on_token=fail)
        eventually(lambda: me.state == "ready")
        assert len(me.tokens) < 100, "it wrote on for nobody"
        assert not slow.engine.desk.running


def test_errors_are_the_engine_s(lab: Lab) -> None:
    with connect(address(lab)) as client:
        me = client.agent("a")
        cases: list[tuple[type[Exception], Callable[[], object]]] = [
            (EmptyText, lambda: me.read([])),
            (TokenOutOfRange, lambda: me.read([10**6])),
            (BadInput, lambda: me.read("no tokenizer reads this")),
            (BadInput, lambda: me.read(7)),  # type: ignore[arg-type]
            (BadInput, lambda: me.write(0)),
            (BadInput, lambda: me.write(1, top_p=7)),
            (BadInput, lambda: me.rollback(10**6)),
            (UnknownGroup, lambda: me.attach("nobody")),
            (NotAMember, lambda: me.attach("team")),
            (NotAMember, lambda: me.publish("team", [1])),
            (BadInput, lambda: client.agent("a")),
            (BadInput, lambda: client.agent("")),
            (BadInput, lambda: client.agent("b", groups="team")),
            (BadInput, lambda: client.agent("b", groups=None)),  # type: ignore[arg-type]
            (BadInput, lambda: me.write(1, on_token=7)),  # type: ignore[arg-type]
            (UnknownGroup, lambda: client.agent("b", groups=["nobody"])),
            (MessageRefused, lambda: me.read([1.5])),  # type: ignore[list-item]
            (MessageRefused, lambda: me.write(10**30)),
            (MessageRefused, lambda: me.read("x" * (1 << 20))),
            (MessageRefused, lambda: me.read([object()])),  # type: ignore[list-item]
        ]
        for error, act in cases:
            with pytest.raises(error) as raised:
                act()
            assert type(raised.value) is error
            assert len(str(raised.value)) > 15
        assert me.write(2).tokens == lab.model.generate(PROMPT, 2)
        me.close()
        for act in (me.close, me.fork, lambda: me.tokens, lambda: me.write(1)):
            with pytest.raises(LeaseExpired):
                act()
    with pytest.raises(LabClosed, match="connect again"):
        client.agent("c")


def test_an_agent_that_the_lab_ended_says_so(lab: Lab) -> None:
    with connect(address(lab)) as client:
        me = client.agent("a")
        me.read([7] * 5)
        lab.agents["a"].close().result()
        time.sleep(2 * BEAT)  # some ticks later too
        with pytest.raises(AgentClosed):
            me.write(1)
        again = client.agent("a")
        assert again.epoch > me.epoch
        with pytest.raises(AgentClosed):
            me.write(1)
        again.write(1)


def test_bad_addresses_and_tokens_are_told_apart(lab: Lab) -> None:
    good = address(lab)
    for bad in ("", "lab.sock", "unix:#token", "http:80#token", "tcp:x#t", "tcp:70000#t", None, 7):
        with pytest.raises(BadInput, match="an address is"):
            connect(bad)  # type: ignore[arg-type]
    with pytest.raises(LabUnreachable, match="no lab serves"):
        connect("unix:/nowhere/lab.sock#token")
    for nowhere in ("tcp:1#token", "unix:a\0b#token", f"unix:/{'x' * 200}#token"):
        with pytest.raises(LabUnreachable):
            connect(nowhere)
    with pytest.raises(MessageRefused, match="token"):
        connect(good.rpartition("#")[0] + "#another")
    lab.agent("b")
    connect(good).close()


def test_by_a_port_of_this_machine_where_there_are_no_sockets_in_files() -> None:
    with serving() as lab:
        assert lab.keeper.service is lab.serve()
        lab.serve().close()
        where = lab.serve(tcp=True).address
        assert where.startswith("tcp:")
        with connect(where) as client, client.agent("a") as me:
            assert me.write(3).tokens == lab.model.generate(PROMPT, 3)


def test_the_socket_is_nobody_else_s_and_goes_with_the_lab(lab: Lab) -> None:
    path = address(lab).removeprefix("unix:").rpartition("#")[0]
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    service._remove(os.path.dirname(path), owner=os.getpid() + 1)
    assert os.path.exists(path), "the end of a forked child took the socket away"
    lab.close()
    assert not os.path.exists(os.path.dirname(path))


def test_many_threads_of_one_client_and_the_lab_s_own_agents_go_on_at_once(slow: Lab) -> None:
    found: dict[str, object] = {}
    with connect(address(slow)) as client:

        def work(name: str) -> None:
            me = client.agent(name)
            me.read([len(name)] * 3)
            found[name] = [me.write(2).tokens for _ in range(3)]

        names = ["a" * n for n in range(1, 7)]
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        mine = slow.agent("mine").write(8).result()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert mine.tokens == slow.model.generate(PROMPT, 8)
        for name in names:
            whole = slow.model.generate([*PROMPT, *[len(name)] * 3], 6)
            assert found[name] == [whole[:2], whole[2:4], whole[4:]]


def test_a_client_starts_without_torch_and_at_once(lab: Lab) -> None:
    code = (
        HEAD + "me = lab.agent(sys.argv[2])\nheavy = {'torch', 'numpy', 'transformers', 'asyncio'}"
        "\nprint(*(heavy & set(sys.modules)))"
    )
    medians = []
    for attempt in range(4):  # on a busy machine a second look is fair
        times = []
        for number in range(3):
            started = time.monotonic()
            args = [sys.executable, "-c", code, address(lab), f"a{attempt}{number}"]
            process = subprocess.Popen(args, stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n", "a client loads what it does not need"
            times.append(time.monotonic() - started)
            process.communicate()
        medians.append(statistics.median(times))
        if medians[-1] < START:
            return
    pytest.fail(f"from start to a connected agent: {medians} s, {START} s are allowed")


# how they end ------------------------------------------------------------------------------------

AGENT = (
    "me = lab.agent('a', groups=['team'])\nme.read([7] * 30)\nchild = me.fork()\nchild.read([8])\n"
)


@pytest.mark.parametrize(
    ("way", "end", "status"),
    [
        ("the end of the program", "", 0),
        ("an exception", "raise RuntimeError('out')", 1),
        ("sys.exit", "sys.exit(3)", 3),
        ("close", "lab.close(); tell(1); told()", 0),
    ],
)
def test_a_program_that_ends_says_goodbye(lab: Lab, way: str, end: str, status: int) -> None:
    """Nobody needs to wait for a lease: a long one is not waited for."""
    lab.close()
    with serving(heartbeat_interval=60.0) as lab:
        before = held(lab)
        with Process(address(lab), AGENT + "tell(1); told()\n" + end) as process:
            process.hear()
            assert held(lab)["private"] > before["private"], way
            process.say(1)
            if way == "close":
                process.hear()
            else:
                assert process.wait() == status
            assert eventually(lambda: held(lab) == before) < SLACK
            assert last_end(lab) == ("close", "its client said goodbye")
            if way == "close":
                process.say(1)
                assert process.wait() == status


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_nothing_and_others_write_on_unchanged(
    slow: Lab, number: int, busy: bool
) -> None:
    other, before = slow.agent("other"), held(slow)
    told = "tell(1)\n" + ("me.write(300)" if busy else "told()")
    with Process(address(slow), AGENT + told) as process:
        process.hear()
        pending = other.write(12)
        if busy:
            eventually(lambda: slow.agents["a"].state == "decoding")
        process.signal(number)
        assert process.wait() == -number
        out = pending.result()
    slow.agents["other"].rollback(12).result()
    back(slow, before)
    assert last_end(slow) == ("expire", "its process is gone")
    assert out.tokens == slow.model.generate(PROMPT, 12)
    assert not any(seq.has_work for seq in slow.engine.ledger.holders())


def test_a_process_that_stands_still_loses_its_lease_and_what_it_says_later_is_late(
    slow: Lab,
) -> None:
    before = held(slow)
    code = (
        "told()\n"
        "try:\n    me.write(3)\n"
        "except Exception as error:\n    tell([type(error).__name__, str(error)])\n"
        "again = lab.agent('b'); tell(again.write(2).tokens); told()"
    )
    with Process(address(slow), AGENT + "tell(1)\n" + code) as process:
        process.hear()
        stop(process.pid)
        stopped = time.monotonic()
        back(slow, before)
        assert time.monotonic() - stopped > LEASE - BEAT - 0.05, "it ended before its lease did"
        assert last_end(slow) == ("expire", "its lease ran out")
        process.signal(signal.SIGCONT)
        process.say(1)
        kind, text = process.hear()
        assert kind == "LeaseExpired"
        assert "make a new agent" in text
        assert held(slow) == before, "a late message brought something back"
        assert process.hear() == slow.model.generate(PROMPT, 2)
        process.say(1)


def test_a_forked_child_neither_beats_nor_speaks_nor_says_goodbye_for_its_parent(
    lab: Lab,
) -> None:
    before = held(lab)
    code = """
reads, writes = os.pipe()
pid = os.fork()
if not pid:
    try:
        me.write(1)
    except Exception as error:
        tell([type(error).__name__, str(error)])
    lab.close()
    if told():
        mine = connect(sys.argv[1])
        tell(mine.agent('child').epoch)
    sys.exit(0)  # its atexit runs, and is not the parent's
os.waitpid(pid, 0)
time.sleep(%r)
tell(me.write(2).tokens)
pid = os.fork()
if not pid:
    tell(os.getpid())
    time.sleep(60)
    os._exit(0)
time.sleep(60)
""" % (2 * LEASE)
    with Process(address(lab), AGENT + code) as process:
        kind, text = process.hear()
        assert kind == "LabUnreachable"
        assert "forked" in text
        process.say(True)
        assert process.hear() > lab.keeper.table()[0][1].epoch
        tokens = process.hear()
        assert tokens == lab.model.generate([*PROMPT, *[7] * 30], 2)
        child = process.hear()
        process.signal(signal.SIGKILL)
        process.wait()
        try:
            back(lab, before)  # though the child lives, with what it inherited
            os.kill(child, 0)
            assert last_end(lab) == ("expire", "its process is gone"), "only its lease ended it"
        finally:
            os.kill(child, signal.SIGKILL)


def test_without_auto_recovery_the_dead_stay_marked() -> None:
    with serving(delay=0.01, auto_recovery=False) as lab:
        before = held(lab)
        with Process(address(lab), AGENT + "tell(1)\nme.write(500)") as process:
            process.hear()
            eventually(lambda: lab.agents["a"].state == "decoding")
            process.signal(signal.SIGKILL)
            process.wait()
        eventually(lambda: {row.state for _, row in lab.leases} == {"overdue"})
        eventually(lambda: lab.agents["a"].state == "ready")
        kept = held(lab)
        assert kept["private"] > before["private"]
        time.sleep(LEASE + BEAT)
        assert held(lab) == kept
        assert "overdue (its process is gone)" in repr(lab.leases)
        assert sorted(lab.recover()) == ["a", "a/1"]
        assert held(lab) == before
        assert {row.state for _, row in lab.leases} == {"ended"}


def test_a_lab_that_stood_still_itself_blames_nobody(lab: Lab) -> None:
    """A process (a lid, a debugger) stops the lab for longer than a lease. The clients beat on."""
    code = (
        "import sys, time\nsys.path.insert(0, sys.argv[1])\n"
        "from clients import serving, address\n"
        "lab = serving()\nprint(address(lab), flush=True)\nsys.stdin.readline()\n"
        "print({row.state for _, row in lab.leases}, flush=True)\nsys.stdin.readline()"
    )
    lab.close()
    args = [sys.executable, "-c", code, os.path.dirname(__file__)]
    process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        where = process.stdout.readline().strip()
        with connect(where) as client:
            me = client.agent("a")
            stop(process.pid)
            time.sleep(LEASE * 1.5)  # twice that, and the client would give the lab up
            process.send_signal(signal.SIGCONT)
            assert len(me.write(2).tokens) == 2
            time.sleep(BEAT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "{'live'}\n"
            stop(process.pid)
            took = time.monotonic()
            with pytest.raises(LabUnreachable, match="has not answered"):
                me.write(2)
            assert time.monotonic() - took < 2 * LEASE + 2 * BEAT + SLACK
        with pytest.raises(LabUnreachable):
            connect(where, timeout=0.2)
        process.send_signal(signal.SIGCONT)
        client = connect(where)
        me = client.agent("b")
        process.kill()
        process.wait()
        with pytest.raises(LabUnreachable, match="is gone"):
            me.write(2)
    finally:
        process.kill()
        process.communicate()


def test_a_lab_that_closes_tells_those_who_wait_and_those_who_ask(slow: Lab) -> None:
    client = connect(address(slow))
    me, other = client.agent("a"), client.agent("b")
    found: list[BaseException] = []

    def work() -> None:
        try:
            me.write(500)
        except InmsError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: slow.agents["a"].state == "decoding")
    slow.close()
    thread.join(20)
    assert [type(error) for error in found] == [LabClosed]
    for act in (lambda: other.write(1), lambda: client.agent("c"), client.close):
        if act != client.close:
            with pytest.raises(LabClosed):
                act()
        else:
            act()
    assert set(held(slow).values()) == {0}


def test_a_service_that_closes_ends_its_agents_and_can_be_opened_again(lab: Lab) -> None:
    before = held(lab)
    client = connect(address(lab))
    me = client.agent("a")
    me.read([7] * 9)
    serving_now = lab.serve()
    serving_now.close()
    serving_now.close()
    assert held(lab) == before
    assert last_end(lab) == ("close", "the lab serves no longer")
    with pytest.raises(LabClosed, match="no longer"):
        me.write(1)
    with pytest.raises(LabUnreachable):
        connect(serving_now.address)
    with connect(lab.serve().address) as client:
        client.agent("a").write(1)


def test_a_step_that_fails_is_told_to_those_who_wait_and_the_lab_goes_on(slow: Lab) -> None:
    with connect(address(slow)) as client:
        me = client.agent("a")
        slow.model.fails = 1
        with pytest.raises(InmsError, match="ArithmeticError: the model failed"):
            me.read([7] * 9)
        assert me.state in ("ready", "prefilling")
        assert me.write(2).tokens == slow.model.generate([*PROMPT, *[7] * 9], 2)
        slow.model.fails = 1
        with pytest.raises(InmsError, match="the model failed"):
            me.write(30)
        known = me.tokens
        assert me.write(1).tokens == slow.model.generate(known, 1), "the rest was written later"
        assert me.tokens[: len(known)] == known
        assert len(me.tokens) == len(known) + 1
        assert not slow.engine.desk.running
        slow.check()


def test_an_interrupt_of_the_lab_stops_what_clients_asked_for_and_ends_nobody(slow: Lab) -> None:
    with connect(address(slow)) as client:
        me = client.agent("a")
        threading.Timer(0.2, slow.driver.interrupt).start()
        with pytest.raises(StepInterrupted):
            me.write(500)
        assert me.state == "ready"
        assert len(me.write(2).tokens) == 2


def test_a_paused_lab_stays_paused_and_a_client_waits(lab: Lab) -> None:
    with connect(address(lab)) as client:
        me, found = client.agent("a"), []
        lab.controls.pause()
        thread = threading.Thread(target=lambda: found.append(me.write(3).tokens))
        thread.start()
        time.sleep(LEASE + 2 * BEAT)
        assert not found
        assert lab.controls.state == "paused"
        assert {row.state for _, row in lab.leases} == {"live"}, "beats are heard meanwhile"
        lab.controls.resume()
        thread.join(20)
        assert found == [lab.model.generate(PROMPT, 3)]


def test_a_program_with_a_lab_that_serves_ends_by_itself() -> None:
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from clients import serving, address\nfrom inms_lab import connect\n"
        "lab = serving()\nlab.lease(lab.agent('a'))\nclient = connect(address(lab))\n"
        "client.agent('b').write(3)\nprint(address(lab))"
    )
    args = [sys.executable, "-c", code, os.path.dirname(__file__)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    path = done.stdout.strip().removeprefix("unix:").rpartition("#")[0]
    assert not os.path.exists(path)


def test_the_readme_s_example_runs() -> None:
    """Its two blocks, in two processes: a lab in which each word is a token, and a client."""
    section = README.read_text("utf-8").split("## Agents that die")[1].split("\n## ")[0]
    here, there = re.findall(r"```python\n(.*?)```", section, re.S)
    with word_lab(heartbeat_interval=BEAT) as lab:
        author = lab.agent("author", groups=[lab.group("checkout").name])
        lab.group("checkout").publish("The orders listen on port 6543.", by=author)
        names: dict[str, Any] = {"lab": lab}
        with redirect_stdout(StringIO()) as told:
            exec(here, names)
        assert "guide" in told.getvalue()
        assert re.search(r"scout +1 .* ended \(its block was left\)", told.getvalue())
        args = [sys.executable, "-c", f"address = {names['address']!r}\n{there}"]
        done = subprocess.run(args, capture_output=True, text=True, timeout=20)
        assert done.stderr == ""
        assert done.stdout.endswith(" ready\n")
        assert lab.agents["tester"].state == "reclaimed"
