"""What a redacted log is made with: what is public, what is seen of each token, and the books that
it begins with: the same, of texts as they are seen."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from inms_lab.books.events import Commanded, Registered, Released
from inms_lab.books.fingerprint import digest
from inms_lab.books.segment import Segment
from inms_lab.books.sequence import Sequence
from inms_lab.errors import PlanInvalid

if TYPE_CHECKING:
    from inms_lab.logs.log import Log
    from inms_lab.logs.redact import Contexts

NOWHERE = -1  # a masked token that never became part of a context


def public_offsets(log: Log, keep: Collection[str], before: dict[int, Any]) -> bytearray:
    """For each token of the table: 1 where its provenance makes it public. `before`: holders that
    the log begins with."""
    public = bytearray(len(log.tokens))
    prompts = {seq_id for seq_id, seq in before.items() if seq["kind"] == "prompt"}
    for e in log.events:
        if isinstance(e, Registered) and e.kind == "prompt":
            prompts.add(e.seq_id)
        prompt = isinstance(e, Commanded) and "prompt" in keep and e.seq_id in prompts
        if prompt or (isinstance(e, Released) and "released" in keep):
            assert isinstance(e, Commanded | Released)
            public[e.offset : e.offset + e.length] = b"\1" * e.length
    return public


class Trie:
    """Nodes, one for a token with what stands before it, in classes that are seen as one: with two
    nodes, all before them too."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # of each node
        self.behind: list[int] = []  # node -> the node before it (below 0: none)
        self.shown: set[int] = set()  # first nodes of the classes with a public token
        self._nodes: dict[tuple[Any, ...], int] = {}
        self._lower: list[int] = []  # node -> one of its class, not after it

    def node(self, behind: int, token: int, mine: tuple[Any, ...]) -> int:
        """The node of a token behind another node; `mine`: what else tells it from others."""
        node = self._nodes.setdefault((behind, token, *mine), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.behind.append(behind)
            self._lower.append(node)
        return node

    def show(self, node: int) -> None:
        """Its token is public."""
        self.shown.add(self.first(node))

    def visible(self, nodes: list[int]) -> list[int]:
        """What a reader sees of these tokens."""
        return [self.tokens[n] if n in self.shown else -(2 + n) for n in map(self.first, nodes)]

    def first(self, node: int) -> int:
        """The first node of the node's class."""
        lower = self._lower
        while lower[node] != node:
            lower[node] = node = lower[lower[node]]
        return node

    def unite(self, one: int, other: int) -> None:
        """Two nodes are seen as one from now, and so is what stands before them."""
        while one >= 0 and (one := self.first(one)) != (other := self.first(other)):
            low, high = min(one, other), max(one, other)
            self._lower[high] = low
            if high in self.shown:
                self.shown.add(low)
            one, other = self.behind[one], self.behind[other]


def masked_snapshot(snapshot: dict[str, Any], contexts: Contexts) -> dict[str, Any]:
    """The same books with the texts as they are seen and keys to match. A block that no holder's
    text names any longer gets a key and tokens that stand for nothing: if a later event finds it
    after all, the log cannot be masked."""
    known: dict[bytes, tuple[bytes, bytes]] = {}  # key -> masked key and tokens
    states = snapshot["sequences"]
    plain = {i: [contexts.trie.tokens[n] for n in contexts.before[i]] for i in states}
    seen = {i: contexts.trie.visible(contexts.before[i]) for i in states}
    olds, news = (_Texts(states, tokens).holders for tokens in (plain, seen))
    for seq_id, state in states.items():
        old, new = olds[seq_id], news[seq_id]
        roots = (part["root"] for part in state["segments"])
        if any(s.tokens and s.root != r for s, r in zip(old.segments, roots, strict=True)):
            raise PlanInvalid(f"the text before a segment of {old.name} is gone")
        for s, t in zip(old.segments, new.segments, strict=True):
            for index in range(-(-len(s.tokens) // s.block_size)):
                known[s.key(index)] = t.key(index), t.block_tokens(index)
    pools = {pool_id: _masked_pool(pool, known) for pool_id, pool in snapshot["pools"].items()}
    masked = {seq_id: new.snapshot() for seq_id, new in news.items()}
    return {**snapshot, "pools": pools, "sequences": masked}


class _Texts:
    """The holders with other tokens, as many as they have, and what follows from them.

    A fragment's tokens and root are those of the segment that it is a piece of, so that segment
    comes first; two holders may have pieces of each other, so segment by segment.
    """

    def __init__(self, states: dict[int, Any], tokens: dict[int, list[int]]) -> None:
        self.tokens = tokens
        self.holders = {seq_id: Sequence.of(state) for seq_id, state in states.items()}
        self.was = {seq_id: Sequence.of(state).segments for seq_id, state in states.items()}
        self.done = dict.fromkeys(states, 0)  # segments that have their new text
        self.pieces: defaultdict[tuple[bytes, int], list[tuple[Segment, Segment, int]]]
        self.pieces = defaultdict(list)  # (root, position) there -> the segment, the new one, block
        while any(self._advance(seq_id) for seq_id in states):
            pass
        if any(self.done[i] < len(s.segments) for i, s in self.holders.items()):
            raise PlanInvalid("the text of a fragment is gone where it was encoded")

    def _advance(self, seq_id: int) -> bool:
        """Give the next segment its text, if it is known."""
        seq, number = self.holders[seq_id], self.done[seq_id]
        if number == len(seq.segments):
            return False
        segment, was = seq.segments[number], self.was[seq_id][number]
        behind = seq.segments[number - 1].end() if number else seq.namespace
        if segment.is_fragment:
            found = self._piece(was)
            if found is None:
                return False
            segment.root, segment.tokens = found
        else:
            at = segment.first_position
            segment.root = behind
            segment.tokens = array("i", self.tokens[seq_id][at : at + len(was.tokens)])
        segment.behind = behind
        self.done[seq_id] += 1
        for block in range(max(1, -(-len(was.tokens) // was.block_size))):
            root = was.chain(block - 1) if block else was.root
            place = (root, was.encoded + block * was.block_size)
            self.pieces[place].append((was, segment, block))
        return True

    def _piece(self, was: Segment) -> tuple[bytes, array[int]] | None:
        for there, new, block in self.pieces[was.root, was.encoded]:
            start = block * there.block_size
            if there.tokens[start : start + len(was.tokens)] == was.tokens:
                root = new.chain(block - 1) if block else new.root
                return root, new.tokens[start : start + len(was.tokens)]
        return None


def _masked_pool(state: dict[str, Any], known: dict[bytes, tuple[bytes, bytes]]) -> dict[str, Any]:
    held = dict(state["tokens"])
    for block, key in (*state["keys"], *state["promised"]):
        nothing = array("i", [NOWHERE] * (len(held.get(block, b"")) // 4)).tobytes()
        known.setdefault(key, (digest(b"masked", b"%d" % len(known)), nothing))
    return {
        **state,
        "keys": [(block, known[key][0]) for block, key in state["keys"]],
        "tokens": [(block, known[key][1]) for block, key in state["keys"]],
        "index": [(known[key][0], blocks) for key, blocks in state["index"]],
        "pending": [(known[key][0], block) for key, block in state["pending"]],
        "promised": [(block, known[key][0]) for block, key in state["promised"]],
    }
