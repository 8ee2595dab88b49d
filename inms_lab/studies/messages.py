"""Message lists of multi-agent logs, read as the requests that a model was asked, in their order.

A file is `.jsonl`, `.jsonl.gz` (one JSON object a line) or `.json` (an object, or a list of them);
a folder stands for all such files in it. What an object is, its keys say:

    session, agent, messages    one request: [{"role", "content", "name"?}, ...]; `answer` (text,
                                optional) is what the agent wrote. The format to write for own data
    input, session_id           one request as flat text ("role: content"), `output` its answer
    traj                        a conversation of one agent: a request before every turn of its own
    system_prompt, history      a conversation of several: before each turn, its speaker is asked
                                with a prompt of its own and everything said so far

Requests of the last two are a reconstruction. Not here: tokens, and what was seen before
(fragments.py).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput

SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
EXPECTED = (
    "an object with session, agent and messages ([{role, content}, ...]); or with input and"
    " session_id; or with traj; or with system_prompt (by agent) and history"
)
_ROLE = re.compile(r"(?:\A|\n\n)(system|user|assistant|tool): ")
_TAG = re.compile(r"\n\n(?=<\w+>)")  # a paragraph that opens with a tag
FLOOR, RATIO = 1 << 20, 100  # bytes that a small .gz file, and one of any size, unpacks to
MAX_TURNS = 10_000  # of a conversation: it is read as that many requests, each with all before it
_HEAD = 32  # characters of a first message by which flat requests of one agent are known


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a request; `name` where several speak in one role."""

    role: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What `agent` was asked in `session`: its messages; `answer` is what it wrote, if known."""

    session: str
    agent: str
    messages: tuple[Message, ...]
    answer: str = ""


def files_in(data: Path) -> list[Path]:
    """The file itself, or a folder's files in the order of their names. Raises `BadInput`."""
    if data.is_dir():
        found = sorted(p for p in data.iterdir() if p.is_file() and p.name.endswith(SUFFIXES))
        if found:
            return found
        raise BadInput(f"{data} holds no {', '.join(SUFFIXES)}: give a file or another folder")
    if not data.is_file():
        raise BadInput(f"there is no {data}: give a file ({', '.join(SUFFIXES)}) or a folder")
    return [data]


def read_requests(path: Path) -> Iterator[Request]:
    """The requests of one file, in its order; requests without any text are left out.

    Raises `BadInput`, with the number of the object, for a file of another form.
    """
    if not path.name.endswith(SUFFIXES):
        raise BadInput(f"{path} is none of {', '.join(SUFFIXES)}")
    for number, value in values_in(path):
        try:
            requests = _form(value)(value, str(number))
            while (request := next(requests, None)) is not None:
                if request.messages:
                    yield request
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = f": {error!r:.200}" if str(error) else ""
            raise BadInput(f"{path}, object {number} has not the form {EXPECTED}{reason}") from None


# --- the file -----------------------------------------------------------------------------------


def values_in(path: Path) -> Iterator[tuple[int, Any]]:
    """The objects of a file, numbered from 1 (in `.jsonl`, the number of the line)."""
    try:
        text = unpacked(path).decode("utf-8")
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged or no such file ({error}): fetch it again") from None
    # Not splitlines(): JSON strings may hold other line separators unescaped.
    lines = text.split("\n") if ".jsonl" in path.suffixes else [text]
    empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}, line {number} is not JSON ({error})") from None
        is_list = isinstance(value, list) and len(lines) == 1
        for offset, item in enumerate(value if is_list else [value]):
            empty = False
            yield number + offset, item
    if empty:
        raise BadInput(f"{path} holds no object: expected is {EXPECTED}")


def unpacked(path: Path) -> bytes:
    """What is in a file, or in what a `.gz` unpacks to. Raises `BadInput` for one that unpacks to
    far more than text does, and errors of gzip and zlib for a damaged one."""
    if path.suffix != ".gz":
        return path.read_bytes()
    most = FLOOR + RATIO * path.stat().st_size
    with gzip.open(path) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise BadInput(f"{path} unpacks to more than {most} bytes: that is no text, fetch it again")
    return text


def _form(value: Any) -> Callable[[dict[str, Any], str], Iterator[Request]]:
    """The reader for this object; `ValueError` for one of no known form."""
    if isinstance(value, dict):
        forms = (
            ({"session", "agent", "messages"}, _own),
            ({"input", "session_id"}, _flat),
            ({"traj"}, _single),
            ({"system_prompt", "history"}, _named),
        )
        for keys, reader in forms:
            if keys <= value.keys():
                return reader
    raise ValueError


# --- the forms ----------------------------------------------------------------------------------


def _own(value: dict[str, Any], number: str) -> Iterator[Request]:
    messages = tuple(filter(None, map(_message, value["messages"])))
    answer = _text(value.get("answer"))
    yield Request(str(value["session"]), str(value["agent"]), messages, answer)


def _flat(value: dict[str, Any], number: str) -> Iterator[Request]:
    """Cut at "role: " marks; without any, at paragraphs that open with a tag.

    Who asked is not recorded: requests of a session that begin alike are one agent's.
    """
    text, answer = _text(value["input"]), _text(value.get("output"))
    marks = list(_ROLE.finditer(text))
    if marks and marks[0].start() == 0:
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        parts = [(m[1], text[m.end() : end]) for m, end in zip(marks, ends, strict=True)]
    else:
        parts = [("user", part) for part in _TAG.split(text)]
    messages = tuple(Message(role, part) for role, part in parts if part.strip())
    head = " ".join(messages[0].text.split())[:_HEAD] if messages else ""
    agent = f"{messages[0].role}: {head}" if messages else ""
    yield Request(str(value["session_id"]), agent, messages, answer)


def _single(value: dict[str, Any], number: str) -> Iterator[Request]:
    parts = [str(value[key]) for key in ("task_id", "trial") if key in value]
    session = "/".join(parts) or number
    said: list[Message] = []
    for turn in _turns(value["traj"]):
        message = _message(turn)
        if message is not None and message.role == "assistant":
            yield Request(session, "agent", tuple(said), message.text)
        said += [message] if message is not None else []


def _named(value: dict[str, Any], number: str) -> Iterator[Request]:
    """The first turn is the task, whoever it is signed by; prompts are looked up by name."""
    prompts, said = value["system_prompt"], list[Message]()
    if not isinstance(prompts, dict):
        raise ValueError("system_prompt holds no prompts by agent")
    for turn in _turns(value["history"]):
        name, text = str(turn["name"]), _text(turn["content"])
        if said and name in prompts:
            prompt = _text(prompts[name])
            own = [Message("system", prompt)] if prompt.strip() else []
            heard = (
                Message("assistant" if m.name == name else "user", m.text, m.name) for m in said
            )
            yield Request(str(value.get("file", number)), name, (*own, *heard), text)
        said += [Message("user", text, name)] if text.strip() else []


def _turns(said: list[Any]) -> list[Any]:
    if len(said) > MAX_TURNS:
        raise ValueError(f"a conversation of {len(said)} turns (at most {MAX_TURNS})")
    return said


def _message(turn: dict[str, Any]) -> Message | None:
    """A turn of a message list; None if it is empty. Calls of tools are its text, as JSON."""
    calls = [
        json.dumps(call.get("function", call), ensure_ascii=False)
        for call in turn.get("tool_calls") or ()
    ]
    text = "\n".join(filter(None, [_text(turn.get("content")), *calls]))
    return Message(str(turn["role"]), text, str(turn.get("name") or "")) if text.strip() else None


def _text(content: Any) -> str:
    """Text of a content: itself, nothing, or the text parts of a list of parts."""
    if isinstance(content, list):
        content = "\n".join(str(p["text"]) for p in content if p.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"a content is text, not {type(content).__name__}")
    return (content or "").encode("utf-8", "replace").decode()  # no halves of surrogate pairs
