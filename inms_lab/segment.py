"""A segment: tokens that lie together in a context, and the blocks of one pool that hold their KV.

Half-open intervals of its slots:
    [0, computed)         KV is written
    [computed, length)    blocks were allocated for a step in flight, which is writing KV
    [length, len(tokens)) known tokens; the last block's rest is theirs without another event
`len(blocks) == ceil(length / block_size)` always. Slots of a closed segment's last block beyond its
tokens stay unused: a segment that starts on a fresh block shares fully and wastes at most these.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

from inms_lab.fingerprint import block_key, cut


@dataclass(slots=True)
class Segment:
    """Tokens that lie together; `root` is the digest of all that stands before it."""

    pool_id: str
    tier: str
    label: tuple[str, ...]
    block_size: int
    first_position: int
    root: bytes
    key_label: bytes
    open: bool  # may grow
    indexed: bool  # may be looked up and found
    tokens: array[int] = field(default_factory=lambda: array("i"))
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    computed: int = 0
    chained: bool = True  # keys cover what stands before (off only for a lesson)
    shift: int = 0  # reader's position minus encoded position; always 0 for prefixes
    keys: list[bytes] = field(default_factory=list, compare=False)  # memo of full blocks' keys

    @property
    def where(self) -> tuple[str, str, tuple[str, ...], bool]:
        """What text must agree in to be packed into this segment."""
        return self.pool_id, self.tier, self.label, self.indexed

    @property
    def room(self) -> int:
        """Tokens that a step may still write into the blocks of the table."""
        return min(len(self.tokens), len(self.blocks) * self.block_size) - self.computed

    def copy(self) -> Segment:
        """An independent copy."""
        return replace(self, tokens=self.tokens[:], blocks=self.blocks[:], keys=self.keys[:])

    def key(self, index: int) -> bytes:
        """Key of block `index`, or b"" where its content is not final or must not be found."""
        start = index * self.block_size
        final = start + self.block_size <= len(self.tokens) or not self.open
        return self.chain(index) if self.indexed and final and start < len(self.tokens) else b""

    def chain(self, index: int) -> bytes:
        """Digest of everything up to the last token of block `index`, full or not."""
        full = min(index + 1, len(self.tokens) // self.block_size)
        while len(self.keys) < full:
            self.keys.append(self._digest(len(self.keys)))
        return self.keys[index] if index < full else self._digest(index)

    def _digest(self, index: int) -> bytes:
        start = index * self.block_size
        tokens = self.tokens[start : start + self.block_size]
        if not self.chained:
            return block_key(b"", self.key_label, 0, tokens)
        parent = self.keys[index - 1] if index else self.root
        return block_key(parent, self.key_label, self.first_position + start, tokens)

    def end(self) -> bytes:
        """Digest of everything up to this segment's last token, and of the cut after it."""
        count = len(self.tokens)
        return cut(self.chain((count - 1) // self.block_size) if count else self.root, count)

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
