"""Traces of real requests: their forms, their order, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from inms_lab.errors import BadInput
from inms_lab.studies.trace import Request, read_trace

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"


def written(folder: Path, *values: Any, name: str = "trace.jsonl") -> Path:
    path = folder / name
    text = "".join(json.dumps(value) + "\n" for value in values)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def moon(*ids: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": [*ids]}


def asked(t: float, *ids: Any, api_time: float = 0.5) -> dict[str, Any]:
    return {"t": t, "type": "n", "hash_ids": [*ids], "api_time": api_time}


def sub(t: float, name: str, ms: int | None, *requests: Any, **more: Any) -> dict[str, Any]:
    item = {"t": t, "type": "subagent", "agent_id": name, "duration_ms": ms}
    return {**item, "requests": [*requests], **more}


def session(name: str, tools: int, *requests: Any, **more: Any) -> dict[str, Any]:
    head = {"id": name, "block_size": 64, "hash_id_scope": "local", "tool_tokens": tools}
    return {**head, "requests": [*requests], **more}


def who(requests: list[Request]) -> list[str]:
    return [request.holder for request in requests]


def pattern(requests: list[Request]) -> list[list[int]]:
    """The blocks of all requests, numbered as they first occur."""
    seen: dict[int, int] = {}
    return [[seen.setdefault(number, len(seen)) for number in r.blocks] for r in requests]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_line_of_mooncakes_is_a_request_in_the_order_of_the_file(
    tmp_path: Path, name: str
) -> None:
    requests = read_trace(written(tmp_path, moon(7, 8), moon(7, 9, 3), moon(), name=name))
    assert pattern(requests) == [[0, 1], [0, 2, 3]]
    assert [(r.session, r.agent, r.num_global, r.tokens) for r in requests] == [
        ("", "", 0, None)
    ] * 2


def test_sub_agents_share_the_ids_of_their_session_and_begin_before_their_time(
    tmp_path: Path,
) -> None:
    """An item's `t` is a sub-agent's end; without a duration its last request tells it."""
    one = session(
        "one",
        130,
        asked(0.0, 1, 2, 3),
        sub(9.0, "timed", 8000, asked(0.0, 1, 5), asked(6.5, 1, 5, 6), tool_tokens=70),
        sub(9.0, "untimed", None, asked(0.0, 1), asked(3.0, 1, 2, api_time=1.0)),
        asked(7.0, 1, 2, 3, 4),
    )
    two = session("two", 64, asked(2.0, 1, 2))
    requests = read_trace(written(tmp_path, one, two))
    assert who(requests) == [
        *("one/main", "one/timed", "two/main", "one/untimed", "one/main", "one/timed"),
        "one/untimed",
    ]
    assert pattern(requests) == [
        *([0, 1, 2], [0, 3], [4, 5], [0], [0, 1, 2, 6], [0, 3, 7]),
        [0, 1],
    ]
    assert [r.num_global for r in requests] == [2, 1, 1, 1, 2, 1, 2]


def test_tools_of_one_length_are_one_text_only_if_asked_for(tmp_path: Path) -> None:
    values = [session(name, 130, asked(0.0, 1, 2, 3)) for name in ("a", "b")]
    values.append(session("c", 64, asked(0.0, 1, 2)))
    path = written(tmp_path, *values)
    assert pattern(read_trace(path)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert pattern(read_trace(path, share_tools=True)) == [[0, 1, 2], [0, 1, 3], [4, 5]]


def test_ids_that_are_not_a_sessions_own_are_everybodys(tmp_path: Path) -> None:
    values = [session(n, 0, asked(0.0, "x", "y"), hash_id_scope="global") for n in ("a", "b")]
    assert pattern(read_trace(written(tmp_path, *values))) == [[0, 1], [0, 1]]


def test_text_is_cut_into_whole_blocks_of_tokens(tmp_path: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    values = [
        {"session": "s", "agent": "a", "messages": [system, {"role": "user", "content": "gree"}]},
        {"session": "s", "agent": "b", "messages": [system, {"role": "user", "content": "hiya"}]},
        {"session": "s", "agent": "c", "messages": [{"role": "me", "content": "x"}]},
    ]
    path = written(tmp_path, *values)
    requests = read_trace(path, encode=lambda text: list(text.encode()), block_size=8)
    assert who(requests) == ["s/a", "s/b"]  # the third has no whole block
    assert pattern(requests) == [[0, 1, 2], [0, 1, 3]]
    first = requests[0]
    assert bytes(list(first.tokens or ())).decode() == "system: be brief\nuser: gree\n"
    assert [r.num_global for r in requests] == [2, 2]
    with pytest.raises(BadInput, match="tokenizer"):
        read_trace(path)


WRONG: dict[str, tuple[str, tuple[Any, ...]]] = {
    "no list": ("line 1 has not the form", ({"hash_ids": 3},)),
    "a fraction": ("line 2 has not the form", (moon(1), moon(1.5))),
    "a list of lists": ("line 1 has not the form", (moon([1]),)),
    "true": ("line 1 has not the form", (moon(True),)),
    "a session without its name": (
        "line 1 has not the form",
        ({"requests": [], "block_size": 64},),
    ),
    "a session whose blocks are empty": (
        "line 1 has not the form",
        (session("a", 0, block_size=0),),
    ),
    "a request without a time": ("line 1 has not", (session("a", 0, {"hash_ids": [1]}),)),
    "a negative number of tool tokens": ("line 1 has not", (session("a", -1, asked(0, 1)),)),
    "a sub-agent without a name": (
        "line 1 has not",
        (session("a", 0, {"t": 1, "type": "subagent", "requests": []}),),
    ),
    "two forms": ("line 2: another form", (moon(1), session("a", 0, asked(0, 1)))),
    "ids, then text": (
        "line 2: another form",
        (moon(1), {"session": "s", "agent": "a", "messages": []}),
    ),
    "no request": ("holds no request", (moon(),)),
    "neither": ("tokenizer|form", ({"timestamp": 1},)),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_form_is_refused_with_the_line(tmp_path: Path, what: str) -> None:
    words, values = WRONG[what]
    with pytest.raises(BadInput, match=words):
        read_trace(written(tmp_path, *values))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(BadInput, match="damaged"):
        read_trace(path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BadInput, match="no object"):
        read_trace(tmp_path / "empty.jsonl")
    (tmp_path / "cut.jsonl").write_text('{"hash_ids": [1, 2')
    with pytest.raises(BadInput, match="line 1 is not JSON"):
        read_trace(tmp_path / "cut.jsonl")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real traces in {SHARED}")
def test_real_traces_have_the_requests_and_blocks_that_are_known() -> None:
    known = {
        "mooncake_conversation": (5_719, 146_464, 96_534),
        "mooncake_synthetic": (2_000, 49_580, 33_310),
    }
    for name, counts in known.items():
        requests = read_trace(SHARED / f"{name}.jsonl.gz")
        blocks = [number for request in requests for number in request.blocks]
        assert (len(requests), len(blocks), len(set(blocks))) == counts
