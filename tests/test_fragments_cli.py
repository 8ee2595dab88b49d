"""`inms-lab fragments`: message lists are read as they are, and what was seen before is counted."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inms_lab import cli
from inms_lab.errors import BadInput
from inms_lab.interference.found import PUBLIC as PUBLIC_PROMPT
from inms_lab.interference.found import quality_of, samples_of
from inms_lab.interference.samples import Sizes
from inms_lab.notebook.text import Text
from inms_lab.studies.fragments import RUN, SCOPES, WAYS, Encoded, look_back
from inms_lab.studies.fragments_table import Cuts, examine
from inms_lab.studies.messages import Message, files_in, read_requests
from inms_lab.terminal.fragments_command import tokenizer_of

TRANSCRIPTS = Path(__file__).resolve().parents[2] / "shared" / "data" / "transcripts"
RULES = "Answer in one sentence. Quote the record that you rely on. Never guess a number."
ORDER = "Order 7 holds two lamps and a shelf; the shelf was sent back because a screw was missing."


def write(path: Path, values: list[Any]) -> Path:
    """The values as `path`'s suffix wants them."""
    if path.name.endswith(".json"):
        path.write_text(json.dumps(values))
    else:
        raw = "".join(json.dumps(value) + "\n" for value in values).encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def words(text: str) -> list[int]:
    """One token a character: counts can be checked by eye."""
    return [ord(c) for c in text]


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json"])
def test_own_format(tmp_path: Path, suffix: str) -> None:
    turns = [
        {"role": "system", "content": RULES},
        {"role": "user", "name": "clerk", "content": [{"type": "text", "text": ORDER}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
        {"role": "assistant", "content": "  "},
    ]
    value = {"session": 1, "agent": "a", "messages": turns, "answer": "It was a screw."}
    (request,) = read_requests(write(tmp_path / f"x{suffix}", [value]))
    assert (request.session, request.agent, request.answer) == ("1", "a", "It was a screw.")
    assert request.messages == (
        Message("system", RULES),
        Message("user", ORDER, "clerk"),
        Message("assistant", '{"name": "look"}'),
    )


def test_conversation_of_several_agents(tmp_path: Path) -> None:
    """Each is asked with its own prompt and what was said; the first turn is the task."""
    log = {
        "system_prompt": {"Ann": "You are Ann.", "Bob": ""},
        "history": [
            {"name": "Ann", "role": "assistant", "content": "the task"},
            {"name": "Bob", "role": "user", "content": "a thought"},
            {"name": "Terminal", "role": "user", "content": "an output"},
            {"name": "Ann", "role": "assistant", "content": "the answer"},
        ],
    }
    bob, ann = read_requests(write(tmp_path / "x.jsonl", [log]))
    assert (bob.session, bob.agent, bob.answer) == ("1", "Bob", "a thought")
    assert bob.messages == (Message("user", "the task", "Ann"),)
    assert (ann.agent, ann.answer) == ("Ann", "the answer")
    assert [(m.role, m.text) for m in ann.messages] == [
        ("system", "You are Ann."),
        ("assistant", "the task"),
        ("user", "a thought"),
        ("user", "an output"),
    ]


def test_conversation_of_one_agent(tmp_path: Path) -> None:
    turns = [("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"), ("assistant", "b")]
    log = {"task_id": 3, "trial": 1, "traj": [{"role": r, "content": c} for r, c in turns]}
    first, second = read_requests(write(tmp_path / "x.jsonl", [log]))
    assert first.session == "3/1"
    assert [m.text for m in first.messages] == ["s", "u"]
    assert first.answer == "a"
    assert [m.text for m in second.messages] == ["s", "u", "a", "t"]


def test_flat_text_is_cut_at_its_marks(tmp_path: Path) -> None:
    marked = "system: Be kind.\n\nWell.\n\nuser: Go on: what\n\nassistant: was it?"
    tagged = "<issue>\nA bug.\n\nAnd a fix.\n</issue>\n\n<rules>\nTest it.\n</rules>"
    lines = [{"input": text, "session_id": "s"} for text in (marked, "", tagged)]
    with_marks, with_tags = read_requests(write(tmp_path / "x.jsonl", lines))
    assert with_marks.messages == (
        Message("system", "Be kind.\n\nWell."),
        Message("user", "Go on: what"),
        Message("assistant", "was it?"),
    )
    assert with_marks.agent == "system: Be kind. Well."
    assert [m.text[:7] for m in with_tags.messages] == ["<issue>", "<rules>"]


def test_a_folder_is_its_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.json", "note.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in files_in(tmp_path)] == ["a.json", "b.jsonl"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"agent": "a"}\n', "line|object 1"),
        (b'{"session": 1, "agent": "a", "messages": [{"content": "x"}]}', "object 1"),
        (b'{"session": 1, "agent": "a", "messages": [{"role": "user", "content": 3}]}', "text"),
        (b'{"session": 1, "agent": "a", "messages": [7]}', "object 1"),
        (b'{"system_prompt": null, "history": []}', "no prompts by agent"),
        (b'{"input": ["x"], "session_id": 1}\n{"inp', "line 2|object 1"),
        (b"[1, 2]", "object 1"),
        (b"not json", "line 1"),
        (b"\xff\xfe", "damaged"),
        (b"\n", "no object"),
    ],
)
def test_other_files_are_refused_with_what_is_expected(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        list(read_requests(path))


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl.gz", [{"input": ORDER * 50, "session_id": "s"}])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match="damaged"):
        list(read_requests(path))


# --- looking back ---------------------------------------------------------------------------------


def slowly(requests: list[Encoded], answers: bool) -> Iterator[dict[str, int]]:
    """The definitions, word by word: tokens of each request for each scope and way."""
    for number, request in enumerate(requests):
        asked = [token for message in request.messages for token in message]
        row = {}
        for scope in SCOPES:
            earlier = [
                r for r in requests[:number] if scope == "file" or r.session == request.session
            ]
            pieces = [[*r.messages, *([r.answer] if answers else [])] for r in earlier]
            texts = [[token for piece in parts for token in piece] for parts in pieces]
            prefix = 0
            while (end := prefix + RUN) <= len(asked):
                if not any(text[:end] == asked[:end] for text in texts):
                    break
                prefix = end
            whole = {piece for parts in pieces for piece in parts if len(piece) >= RUN}
            starts = {tuple(t[i : i + RUN]) for t in texts for i in range(len(t) - RUN + 1)}
            in_message, in_run, at = set(range(prefix)), set[int](), 0
            for message in request.messages:
                if message in whole:
                    in_message |= set(range(at, at + len(message)))
                at += len(message)
            for i in range(len(asked) - RUN + 1):
                if tuple(asked[i : i + RUN]) in starts:
                    in_run |= set(range(i, i + RUN))
            row |= {
                f"{scope} {w}": n
                for w, n in zip(WAYS, (prefix, len(in_message), len(in_run)), strict=True)
            }
        yield row


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_counts_equal_those_of_the_definitions(seed: int, answers: bool) -> None:
    rng = random.Random(seed)
    texts = [tuple(rng.choices(range(5), k=rng.choice((3, 15, 16, 17, 40)))) for _ in range(9)]
    requests = []
    for _ in range(25):
        picked = tuple(rng.choice(texts) for _ in range(rng.randint(1, 5)))
        if rng.random() < 0.3:  # a part of a text is no whole message
            picked = (*picked, picked[0][1:] or (1,))
        session, agent = rng.choice("st"), rng.choice("ab")
        requests.append(Encoded(session, agent, picked, rng.choice((*texts, ()))))
    seen = look_back(requests, answers)
    for row, expected in zip(
        seen.requests.to_dict("records"), slowly(requests, answers), strict=True
    ):
        assert {key: row[key] for key in expected} == expected
        for scope in SCOPES:
            prefix, messages, runs = (row[f"{scope} {way}"] for way in WAYS)
            assert prefix <= messages <= runs <= row["tokens"]
    assert 0 < seen.share("prefix") < seen.share("messages") < seen.share("runs") < 1


def test_the_story_of_two_agents(tmp_path: Path) -> None:
    """A prefix breaks at once where prompts differ; the message behind it is found all the same."""
    rest = {"role": "user", "content": ORDER}
    values = [
        {"session": "s", "agent": name, "messages": [{"role": "system", "content": text}, rest]}
        for name, text in (("a", RULES), ("b", f"You are b. {RULES}"), ("a", RULES))
    ]
    report = examine(write(tmp_path / "x.jsonl", values), words, Cuts(), lambda: None)
    seen = report.seen
    first, second, third = seen.requests.to_dict("records")
    assert [row["first"] for row in (first, second, third)] == [True, True, False]
    assert first["file runs"] == 0
    assert second["file prefix"] == 0
    assert second["file messages"] == len(ORDER)
    assert second["file runs"] == len(RULES) + len(ORDER)
    assert third["file messages"] == third["tokens"] == len(RULES) + len(ORDER)
    assert seen.fragments == ((1, 1),)
    assert seen.share("messages", first=True) == len(ORDER) / seen.tokens(first=True)
    told = report.as_dict(10)
    assert told["first_requests"]["requests"] == 2
    assert told["first_requests"]["seen_in_session"]["messages"]["kv_bytes"] == 10 * len(ORDER)


def test_cuts_are_applied_and_counted(tmp_path: Path) -> None:
    values = [{"input": f"user: {ORDER}", "session_id": s, "output": RULES} for s in "stst"]
    path = write(tmp_path / "x.jsonl", values)
    report = examine(path, words, Cuts(limit_tokens=20, sessions=1), lambda: None)
    assert report.num_cut == len(report.requests) == 2
    assert list(report.seen.requests["tokens"]) == [20, 20]
    assert list(report.seen.requests["file messages"]) == [0, 20]
    with pytest.raises(BadInput, match="limit_tokens"):
        Cuts(limit_tokens=0)


def test_an_answer_counts_as_seen_unless_told_otherwise(tmp_path: Path) -> None:
    values = [
        {"input": f"user: {RULES}", "session_id": "s", "output": ORDER},
        {"input": f"system: Hear this.\n\nuser: {ORDER}", "session_id": "s"},
    ]
    path = write(tmp_path / "x.jsonl", values)
    counted, not_counted = (
        examine(path, words, Cuts(answers=answers), lambda: None).seen for answers in (True, False)
    )
    assert counted.fragments == ((1, 1),)
    assert not_counted.tokens("runs") == 0


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.model
def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    lines = [{"input": f"user: {a}\n\nuser: {ORDER}", "session_id": "s"} for a in (RULES, "Go.")]
    path = str(write(tmp_path / "x.jsonl", lines))
    out = CliRunner().invoke(cli.app, ["fragments", path, "--limit-tokens", "64"])
    assert out.exit_code == 0, out.output
    assert "cut to 64 tokens" in " ".join(out.stdout.split())
    out = CliRunner().invoke(cli.app, ["fragments", path, "--json"])
    (told,) = json.loads(out.stdout)["files"]
    assert told["fragments"] == 1
    messages, runs = (told["all_requests"]["seen_in_file"][way] for way in ("messages", "runs"))
    assert 0.2 < messages["share"] <= runs["share"] < 0.5


def test_a_missing_file_is_a_named_error() -> None:
    out = CliRunner().invoke(cli.app, ["fragments", "nowhere.jsonl"])
    assert isinstance(out.exception, BadInput)
    assert "nowhere.jsonl" in str(out.exception)


@pytest.mark.model
def test_real_logs_are_found_as_the_reference_says() -> None:
    """First requests, prefix to any place: mini-swe-agent 0 to 62 % (mean of requests)."""
    path = TRANSCRIPTS / "mini_swe_agent_requests.jsonl.gz"
    if not path.exists():
        pytest.skip("no ../shared/data here: the command is tested on texts of its own above")
    encode, size = tokenizer_of("smollm2-135m")
    assert size == 45 * 1024
    seen = examine(path, encode, Cuts(limit_tokens=4096), lambda: None).seen
    assert seen.tokens("prefix", first=True) == 0
    assert seen.mean_share("runs", first=True) == pytest.approx(0.62, abs=0.02)


# --- quality --------------------------------------------------------------------------------------

NOTE = (
    "The key hangs behind the door of the cellar, and the second one is with the neighbour. Whoever"
    " takes it signs the list on the wall and brings it back before six."
)
NEXT = "Thank you. I will go there tomorrow morning, before the vans are loaded, and report back."


class Letters(Text):
    """One token a character, no turn marks: samples can be read again."""

    def __init__(self) -> None:
        super().__init__(None)

    def encode(self, text: Any, role: str | None = None) -> list[int]:
        return words(text)


def logged(tmp_path: Path) -> Path:
    """Ann reads a note behind her rules; Bob has it behind his own, and goes on."""
    ann = [{"role": "system", "content": RULES}, {"role": "user", "content": NOTE}]
    bob = [{"role": "system", "content": ORDER}, {"role": "tool", "content": NOTE}]
    lines = [
        {"session": "s", "agent": "ann", "messages": ann},
        {"session": "s", "agent": "bob", "messages": bob, "answer": NEXT},
    ]
    return write(tmp_path / "x.jsonl", lines)


def test_a_sample_has_what_stood_around_the_message(tmp_path: Path) -> None:
    report = examine(logged(tmp_path), words, Cuts(), lambda: None)
    sizes = Sizes(own=40, fragment=50, continuation=60)
    found = report.requests, report.seen.fragments, Letters(), 5, sizes
    (sample,) = samples_of(*found)
    parts = (sample.public, sample.own, sample.other, sample.fragment, sample.continuation)
    public, own, other, fragment, continuation = ("".join(map(chr, part)) for part in parts)
    assert public == PUBLIC_PROMPT
    assert (own, other, fragment) == (ORDER[:40], RULES[:40], NOTE[:50])
    assert continuation == (NOTE[50:] + NEXT)[:60]
    assert samples_of(*found) == [sample]
    too_short = Sizes(own=40, fragment=20, continuation=60)
    assert samples_of(*found[:4], too_short) == []


@pytest.mark.model
def test_quality_is_measured_and_printed(tmp_path: Path) -> None:
    out = CliRunner().invoke(cli.app, ["fragments", str(logged(tmp_path)), "--quality", "1"])
    assert out.exit_code == 0, out.output
    told = " ".join(out.stdout.split())
    assert "1 messages as fragments (first 384 tokens, behind at most 300)" in told
    found = re.search(r"behind public context, shifted: KL (\S+) \[\S+, \S+\], agreement", told)
    missing = re.search(r"not there: KL (\S+)", told)
    assert found
    assert missing
    assert 0 < float(found[1]) < float(missing[1])


def test_quality_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 1 fragment"):
        quality_of(None, [], [], 0)  # type: ignore[arg-type]
