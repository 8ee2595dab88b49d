"""Traces of real requests, read into one stream: who asked, for which blocks or tokens, in order.

A file is `.jsonl`, `.jsonl.gz` or `.json`; what an object in it is, its keys say:

    hash_ids                    Mooncake: one request, `hash_ids` its blocks in order. An id names a
                                block and all before it. `timestamp` and the lengths are not needed:
                                the order of the file is the order of the requests
    id, requests, block_size    Claude Code: one session, a list of requests. A request has `t`
                                (seconds since the session began) and `hash_ids`; an item of type
                                "subagent" has `agent_id` and `requests` of its own, whose `t`
                                counts from the sub-agent's start. Its own `t` is its end: it began
                                `duration_ms` earlier or, where that is null, earlier by its last
                                request's `t` + `api_time`. Ids are the session's own unless
                                `hash_id_scope` is "global". `tool_tokens` is the length of the tool
                                definitions that begin each request (a sub-agent has its own).
                                All sessions start at 0; their requests are merged by time
    messages and the like       text, in any form of `inms-lab fragments` (messages.py)

`share_tools`: whole blocks of tool definitions of one length are the same text in every session
(an assumption: the ids do not say so). Not here: what a cache makes of it (replay.py).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.studies.messages import SUFFIXES, Message, read_requests, values_in

MAX_BLOCKS = 1 << 27  # different ones: their stand-in tokens are int32
MAX_TOKENS = 1 << 28  # of all requests of a trace of text together
EXPECTED = "hash_ids (a request); or id, requests and block_size (a session); or a message list"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Equal numbers in `blocks` are the same text behind the same text.

    `num_global`: how many of its first blocks are tool definitions or a system prompt.
    """

    session: str
    agent: str  # "": the trace does not say
    blocks: array[int]
    num_global: int = 0
    tokens: array[int] | None = None  # of a text; else blocks stand for themselves

    @property
    def holder(self) -> str:
        """Who asked, over all sessions."""
        return f"{self.session}/{self.agent}" if self.agent else "request"


def read_trace(
    path: Path,
    share_tools: bool = False,
    encode: Callable[[str], Sequence[int]] | None = None,
    block_size: int = 16,
) -> list[Request]:
    """The requests of a trace in the order in which they are to be played; those without a whole
    block are left out. `encode` and `block_size` are for traces of text.

    Raises `BadInput`: for no file, or with the number of the line for one of another form.
    """
    if not path.exists():
        raise BadInput(f"there is no {path}: give a trace ({', '.join(SUFFIXES)})")
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give one file in it ({', '.join(SUFFIXES)})")
    reader, forms = _Reader(share_tools), set[str]()
    timed: list[tuple[float, Request]] = []
    for number, value in values_in(path):
        if not _is_ids(value):
            if forms:
                raise BadInput(f"{path}, line {number}: another form than the lines before it")
            return _texts(path, encode, block_size)
        forms.add("requests" if "requests" in value else "hash_ids")
        try:
            timed += reader.session(value) if "requests" in value else reader.single(value)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise BadInput(
                f"{path}, line {number} has not the form {EXPECTED} ({error!r:.80})"
            ) from None
        if len(forms) > 1:
            raise BadInput(f"{path}, line {number}: another form than the lines before it")
    timed.sort(key=itemgetter(0))
    requests = [request for _, request in timed if request.blocks]
    if not requests:
        raise BadInput(f"{path} holds no request with a block: there is nothing to replay")
    return requests


def _is_ids(value: Any) -> bool:
    """Whether it names blocks; else it is text."""
    return isinstance(value, dict) and (
        "hash_ids" in value or {"requests", "block_size"} <= value.keys()
    )


class _Reader:
    """Gives every block a number of its own, whatever its file calls it."""

    def __init__(self, share_tools: bool) -> None:
        self.share_tools = share_tools
        self._count = count()
        self._everywhere = self._names()
        self._tools: dict[int, defaultdict[Any, int]] = {}

    def _names(self) -> defaultdict[Any, int]:
        return defaultdict(self._count.__next__)

    def single(self, value: dict[str, Any]) -> Iterator[tuple[float, Request]]:
        """A line of Mooncake's."""
        yield 0.0, Request("", "", _numbers(value["hash_ids"], self._everywhere))

    def session(self, value: dict[str, Any]) -> Iterator[tuple[float, Request]]:
        """A session of Claude Code with its sub-agents."""
        if _natural(value["block_size"]) == 0:
            raise ValueError("a block has at least one token")
        is_local = value.get("hash_id_scope", "local") != "global"
        names = self._names() if is_local else self._everywhere
        who = (str(value["id"]), "main")
        yield from self._requests(value, who, 0.0, (names, int(value["block_size"])))

    def _requests(
        self,
        value: dict[str, Any],
        who: tuple[str, str],
        start: float,
        where: tuple[defaultdict[Any, int], int],
    ) -> Iterator[tuple[float, Request]]:
        names, size = where
        tool_tokens = _natural(value.get("tool_tokens") or 0)
        for item in value["requests"]:
            at = start + float(item["t"])
            if item.get("type") == "subagent":
                inner = {"tool_tokens": tool_tokens, **item}
                began = at - _duration(item)
                yield from self._requests(inner, (who[0], str(item["agent_id"])), began, where)
                continue
            blocks = _numbers(item["hash_ids"], names)
            first = min(tool_tokens // size, len(blocks))
            if self.share_tools:
                same = self._tools.setdefault(tool_tokens, self._names())
                blocks[:first] = array("i", map(same.__getitem__, range(first)))
            yield at, Request(*who, blocks, first)


def _duration(item: dict[str, Any]) -> float:
    """Seconds that a sub-agent took."""
    if item.get("duration_ms") is not None:
        return float(item["duration_ms"]) / 1000
    last = item["requests"][-1] if item["requests"] else {"t": 0}
    return float(last["t"]) + float(last.get("api_time") or 0)


def _numbers(ids: Any, names: defaultdict[Any, int]) -> array[int]:
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int, str}:
        raise ValueError("hash_ids is a list of whole numbers or strings")
    numbers = array("i", map(names.__getitem__, ids))
    if numbers and max(numbers) >= MAX_BLOCKS:
        raise ValueError(f"more than {MAX_BLOCKS} different blocks")
    return numbers


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.20} is no number of tokens")
    return value


# --- text ---------------------------------------------------------------------------------------


def _texts(
    path: Path, encode: Callable[[str], Sequence[int]] | None, block_size: int
) -> list[Request]:
    """Message lists: a system message that comes first is the global part."""
    if encode is None:
        raise BadInput(f"{path} holds text, not block ids: it needs a model's tokenizer")
    names: defaultdict[Any, int] = defaultdict(count().__next__)
    known: dict[Message, Sequence[int]] = {}
    total = 0
    out = []
    for request in read_requests(path):
        tokens, num_global = array("i"), 0
        for message in request.messages:
            if message not in known:
                known[message] = encode(f"{message.role}: {message.text}\n")
            tokens.extend(known[message])
            if message is request.messages[0] and message.role == "system":
                num_global = len(tokens) // block_size
        total += len(tokens)
        if total > MAX_TOKENS:
            raise BadInput(f"{path} holds requests of more than {MAX_TOKENS} tokens: give a part")
        blocks, before = array("i"), -1
        for start in range(0, len(tokens) - block_size + 1, block_size):
            before = names[before, tokens[start : start + block_size].tobytes()]
            blocks.append(before)
        if blocks:
            out.append(Request(request.session, request.agent, blocks, num_global, tokens))
    if not out:
        raise BadInput(f"{path} holds no request with a block: there is nothing to replay")
    return out
