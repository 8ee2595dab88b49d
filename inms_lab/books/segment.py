"""A segment: tokens that lie together in a context, and the blocks of one pool that hold their KV.

Half-open intervals of its slots:
    [0, computed)         KV is written
    [computed, length)    blocks were allocated for a step in flight, which is writing KV
    [length, len(tokens)) known tokens; the last block's rest is theirs without another event
`len(blocks) == ceil(length / block_size)` always. Slots of a closed segment's last block beyond its
tokens stay unused: a segment that starts on a fresh block shares fully and wastes at most these.

A segment is a *fragment* where its KV was encoded somewhere else than its reader has it: behind
other text (`root` is not `behind`), mostly at another position too (`encoded` is not
`first_position`). Its blocks are found under the keys that they were written under; only queries
know the shift.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from inms_lab.books.fingerprint import block_key, block_keys, cut, digest


@dataclass(slots=True)
class Segment:
    """Tokens that lie together; `behind` is the digest of all that its reader has before it."""

    pool_id: str
    tier: str
    label: tuple[str, ...]
    block_size: int
    first_position: int  # of its reader
    behind: bytes
    encoded: int  # the position that the first token's key is rotated for
    root: bytes  # digest of what the KV is encoded behind
    key_label: bytes
    open: bool  # may grow
    indexed: bool  # may be looked up and found
    tokens: array[int] = field(default_factory=lambda: array("i"))
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    computed: int = 0
    chained: bool = True  # keys cover what stands before (off only for a lesson)
    is_fragment: bool = False
    source: int = -1  # the holder whose text it is: a record, a prompt, or who encoded the KV
    why: str = ""  # why that holder's KV is not mounted
    keys: list[bytes] = field(default_factory=list, compare=False)  # memo of full blocks' keys

    @property
    def where(self) -> tuple[str, str, tuple[str, ...], bool]:
        """What text must agree in to be packed into this segment."""
        return self.pool_id, self.tier, self.label, self.indexed

    @property
    def room(self) -> int:
        """Tokens that a step may still write into the blocks of the table."""
        return min(len(self.tokens), len(self.blocks) * self.block_size) - self.computed

    @property
    def shift(self) -> int:
        """The reader's position of a token minus the position that its key is rotated for."""
        return self.first_position - self.encoded

    def copy(self) -> Segment:
        """An independent copy."""
        new = object.__new__(Segment)
        for name in Segment.__slots__:
            setattr(new, name, getattr(self, name))
        new.tokens, new.blocks, new.keys = self.tokens[:], self.blocks[:], self.keys[:]
        return new

    @classmethod
    def of(cls, state: dict[str, Any]) -> Segment:
        """The segment with these fields (those of an old file have no place but their own)."""
        own = {"behind": state["root"], "encoded": state["first_position"]}
        known = {name: value for name, value in state.items() if name in cls.__slots__}
        return cls(**(own | known)).copy()

    def take_from(self, donor: Segment, encoded: int) -> None:
        """Become a fragment: the KV of `donor` from the block on whose first position is `encoded`,
        found under the donor's keys."""
        block = (encoded - donor.encoded) // donor.block_size
        self.is_fragment = True
        self.encoded, self.root = encoded, donor.chain(block - 1) if block else donor.root
        self.key_label, self.chained = donor.key_label, donor.chained

    def move_behind(self, behind: bytes) -> None:
        """Something else stands before this segment now; own text is to be computed behind it."""
        if not self.is_fragment and self.behind != behind:
            self.root = behind
            self.keys.clear()
        self.behind = behind

    def key(self, index: int) -> bytes:
        """Key of block `index`, or b"" where its content is not final or must not be found."""
        start = index * self.block_size
        final = start + self.block_size <= len(self.tokens) or not self.open
        return self.chain(index) if self.indexed and final and start < len(self.tokens) else b""

    def chain(self, index: int) -> bytes:
        """Digest of everything up to the last token of block `index`, full or not."""
        full = self._know(index + 1)
        return self.keys[index] if index < full else self._digest(index)

    def keys_of(self, first: int, stop: int) -> tuple[bytes, ...]:
        """`key` of the blocks `[first, stop)`."""
        full = self._know(stop) if self.indexed else 0
        return (*self.keys[first:full], *map(self.key, range(max(first, full), stop)))

    def _know(self, stop: int) -> int:
        """Have the keys of the full blocks before `stop` at hand; gives how many there are."""
        size, have = self.block_size, len(self.keys)
        full = min(stop, len(self.tokens) // size)
        if have < full and self.chained:
            parent = self.keys[-1] if have else self.root
            tokens = self.tokens[have * size : full * size]
            where = self.encoded + have * size
            self.keys += block_keys(parent, self.key_label, where, tokens, size)
        for index in range(len(self.keys), full):
            self.keys.append(self._digest(index))
        return full

    def _digest(self, index: int) -> bytes:
        start = index * self.block_size
        tokens = self.tokens[start : start + self.block_size]
        if not self.chained:
            return block_key(b"", self.key_label, 0, tokens)
        parent = self.keys[index - 1] if index else self.root
        return block_key(parent, self.key_label, self.encoded + start, tokens)

    def end(self) -> bytes:
        """Digest of everything up to this segment's last token, and of the cut after it. Behind a
        fragment it names the fragment's KV and what the reader has before it."""
        count = len(self.tokens)
        last = self.chain((count - 1) // self.block_size) if count else self.behind
        return cut(digest(b"fragment", self.behind, last) if self.is_fragment else last, count)

    def mount(self, blocks: tuple[int, ...], length: int, written: bool) -> None:
        """`blocks` come behind the table; the segment has `length` slots now."""
        self.blocks.extend(blocks)
        self.length = length
        if written:
            self.computed = length

    def unmount(self, count: int, length: int) -> None:
        """The last `count` blocks leave the table; `length` slots remain."""
        del self.blocks[len(self.blocks) - count :]
        self.length, self.computed = length, min(self.computed, length)

    def truncate(self, count: int) -> None:
        """Keep the first `count` tokens (the blocks are let go by `Freed`)."""
        del self.tokens[count:]
        del self.keys[count // self.block_size :]

    def block_tokens(self, index: int) -> bytes:
        """Token ids of block `index`, as int32 bytes."""
        start = index * self.block_size
        return self.tokens[start : start + self.block_size].tobytes()

    def texts(self, first: int, count: int) -> list[bytes]:
        """`block_tokens` of `count` blocks from `first` on (fewer, where the text ends)."""
        size = self.block_size
        raw = self.tokens[first * size : (first + count) * size].tobytes()
        width = size * self.tokens.itemsize
        return [raw[start : start + width] for start in range(0, len(raw), width)]
