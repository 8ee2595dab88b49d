"""The books that a redacted log begins with: the same, of texts as they are seen."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from inms_lab.errors import PlanInvalid
from inms_lab.fingerprint import digest
from inms_lab.sequence import Sequence

if TYPE_CHECKING:
    from inms_lab.redact import Contexts

NOWHERE = -1  # a masked token that never became part of a context


def masked_snapshot(snapshot: dict[str, Any], contexts: Contexts) -> dict[str, Any]:
    """The same books with the texts as they are seen and keys to match. A block that no holder's
    text names any longer gets a key and tokens that stand for nothing: if a later event finds it
    after all, the log cannot be masked."""
    known: dict[bytes, tuple[bytes, bytes]] = {}  # key -> masked key and tokens
    sequences = {}
    if any(s.get("is_fragment") for q in snapshot["sequences"].values() for s in q["segments"]):
        raise PlanInvalid("it begins in the middle of a run, with fragments in its contexts")
    for seq_id, state in snapshot["sequences"].items():
        nodes = contexts.before[seq_id]
        old = _with_text(state, [contexts.tokens[node] for node in nodes])
        new = _with_text(state, contexts.visible(nodes))
        roots = (part["root"] for part in state["segments"])
        if any(s.tokens and s.root != r for s, r in zip(old.segments, roots, strict=True)):
            raise PlanInvalid(f"the text before a segment of {old.name} is gone")
        for s, t in zip(old.segments, new.segments, strict=True):
            for index in range(-(-len(s.tokens) // s.block_size)):
                known[s.key(index)] = t.key(index), t.block_tokens(index)
        sequences[seq_id] = new.snapshot()
    pools = {pool_id: _masked_pool(pool, known) for pool_id, pool in snapshot["pools"].items()}
    return {**snapshot, "pools": pools, "sequences": sequences}


def _with_text(state: dict[str, Any], tokens: list[int]) -> Sequence:
    """The holder with other tokens, as many as it has, and what follows from them."""
    seq, at = Sequence.of(state), 0
    end = seq.namespace
    for segment in seq.segments:
        count = len(segment.tokens)
        segment.root = segment.behind = end
        segment.tokens = array("i", tokens[at : at + count])
        end, at = segment.end(), at + count
    return seq


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
