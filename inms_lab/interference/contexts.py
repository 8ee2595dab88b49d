"""Contexts laid by hand: parts of text whose KV is computed once and mounted anywhere.

    scratch = Scratch(runner)
    public = scratch.encode(system)                        # at positions 0, 1, ...
    record = scratch.encode(text, behind=[public])         # encoded behind the public prompt
    own = scratch.encode(prompt, behind=[public])
    rows = scratch.logits(answer, behind=[public, own, record])  # the record at a shift

A reader has its context without gaps, so a part's shift follows from where it stands. Nothing here
asks whether a reader may see a part, and no books are kept: this is for measuring, not for serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from inms_lab.attention.batch import Span, TileRef
from inms_lab.errors import BadInput, ContextTooLong, TextTooLarge, UnsafeShift
from inms_lab.model.runner import Runner

POOL = "scratch"


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens whose KV lies at `slot`, `slot` + 1, ..., encoded at `first`, `first` + 1, ...

    `sense` multiplies the shift at which readers have it: 1 is right; 0 (not shifted) and -1 (the
    wrong way) exist to be measured.
    """

    tokens: tuple[int, ...]
    slot: int
    first: int
    sense: int = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, cut: slice) -> Part:
        """A piece of it, in the same slots."""
        start, stop, step = cut.indices(len(self))
        if step != 1 or start >= stop:
            raise BadInput(f"a part is cut into pieces of at least one token, not {cut}")
        return replace(
            self, tokens=self.tokens[cut], slot=self.slot + start, first=self.first + start
        )

    def turned(self, sense: int) -> Part:
        """The same KV, for a reader that multiplies its shift by `sense`."""
        return replace(self, sense=sense)


class Scratch:
    """Room for parts of one model, and the forwards that fill them.

    What `lay`, `recompute` and `ask` queue is computed together by `compute`: tokens may read
    others of the same forward that stand before them. Raises `UnsafeShift` for a model whose keys
    cannot be used at another position, where a part is.
    """

    def __init__(self, runner: Runner, tile: int = 64, num_slots: int = 8192) -> None:
        self.runner, self.tile, self.num_slots = runner, tile, num_slots
        self.store = runner.new_store()
        self.store.open(POOL, num_slots + tile)  # a last tile is read at full size
        self.used = 0
        self._spans: list[Span] = []
        self._asked: list[int] = []  # rows of each question

    def close(self) -> None:
        """Give the memory back."""
        self.store.close()

    @contextmanager
    def room(self) -> Iterator[None]:
        """Parts that are laid inside are forgotten at the end, and their slots used again."""
        used = self.used
        try:
            yield
        finally:
            self.used = used
            self._spans, self._asked = [], []

    # --- one thing at a time ----------------------------------------------------------------

    def encode(
        self, tokens: Sequence[int], behind: Sequence[Part] = (), at: int | None = None
    ) -> Part:
        """KV of these tokens as computed behind a context; `at`: position of the first token."""
        part = self.lay(tokens, behind, at)
        self.compute()
        return part

    def logits(self, tokens: Sequence[int], behind: Sequence[Part]) -> torch.Tensor:
        """Logits [T + 1, vocab] of a continuation, teacher forced, in float32.

        Row i predicts token i of the continuation, the last row what would follow it; row 0 is the
        context's last token, computed again for it. `tokens` may be empty.
        """
        self.ask(tokens, behind)
        return self.compute()[-1]

    # --- many in one forward ----------------------------------------------------------------

    def lay(
        self, tokens: Sequence[int], behind: Sequence[Part] = (), at: int | None = None
    ) -> Part:
        """Like `encode`; computed by the next `compute`."""
        before = sum(map(len, behind))
        first = before if at is None else at
        if not tokens:
            raise BadInput("a part has at least one token")
        if first < before:
            raise BadInput(f"position {first} leaves no room for the {before} tokens before it")
        part = Part(tuple(tokens), self._take(len(tokens)), first)
        self._compute_later(part, behind)
        return part

    def recompute(
        self, part: Part, picks: Sequence[int], behind: Sequence[Part] = (), at: int | None = None
    ) -> list[Part]:
        """The part as a reader has it who computes the tokens `picks` of it afresh.

        `picks` are indices into the part. The result stands in its place: runs of kept tokens, in
        the part's own slots, and runs that are computed behind everything before them.
        """
        if picks and not (min(picks) >= 0 and max(picks) < len(part)):
            raise BadInput(f"the part has tokens 0 to {len(part) - 1}, not {sorted(picks)}")
        fresh, before = set(picks), sum(map(len, behind))
        offset = 0 if at is None else at - before
        slot = self._take(len(fresh)) if fresh else 0
        context = list(behind)
        for is_fresh, run in groupby(range(len(part)), key=fresh.__contains__):
            indices = list(run)
            piece = part[indices[0] : indices[-1] + 1]
            if is_fresh:
                piece = Part(piece.tokens, slot, offset + before)
                self._compute_later(piece, context)
                slot += len(piece)
            context.append(piece)
            before += len(piece)
        return context[len(behind) :]

    def ask(self, tokens: Sequence[int], behind: Sequence[Part]) -> Part | None:
        """Queue a continuation for the next `compute`, which gives its `logits`.

        Gives the part that will hold its KV; None if it is empty.
        """
        before = sum(map(len, behind))
        if not before:
            raise BadInput("a continuation needs a context of at least one token")
        last = behind[-1].tokens[-1]
        tiles = self._tiles(behind, 0)
        self._queue(Span(before - 1, [last], [before - 1], (), tiles, True))
        self._asked.append(1 + len(tokens))
        if not tokens:
            return None
        part = Part(tuple(tokens), self._take(len(tokens)), before)
        self._compute_later(part, behind, True)
        return part

    @torch.inference_mode()
    def compute(self) -> list[torch.Tensor]:
        """Compute all that is queued; the logits of each question [T + 1, vocab]."""
        spans, asked = self._spans, self._asked
        self._spans, self._asked = [], []
        if not spans:
            return []
        runner, at = self.runner, 0
        rows: list[int] = []
        for span in spans:
            rows += range(at, at + len(span.tokens)) if span.wants_logits else ()
            at += len(span.tokens)
        batch = runner.batch(spans, self.store, self.tile)
        padded = rows + [0] * (-len(rows) % runner.row_multiple)
        batch.logit_rows = torch.tensor(padded, dtype=torch.long, device=runner.device)
        runner.run(batch)
        return list(runner.last_logits[: len(rows)].float().split(asked))

    def kv(self, part: Part, at: int | None = None) -> torch.Tensor:
        """Keys and values [layers, 2, K, T, D], the keys as they lie or turned to stand `at`."""
        region = self.store.regions[POOL][:, :, :, part.slot : part.slot + len(part)]
        both = region.transpose(0, 1).clone()
        if at is not None and at != part.first:
            if not self.runner.rotations:
                raise UnsafeShift(f"keys cannot be turned: {self.runner.unsafe}")
            for layer, rotation in enumerate(self.runner.rotations):
                if rotation is not None:
                    both[layer, 0] = rotation.turn(both[layer, 0], at - part.first).to(both.dtype)
        return both

    def copy(self, part: Part) -> Part:
        """The same KV once more, in slots of its own."""
        slot = self._take(len(part))
        self.store.copy((POOL, part.slot), (POOL, slot), len(part))
        return replace(part, slot=slot)

    # --- below: slots, tiles, spans ---------------------------------------------------------

    def _take(self, count: int) -> int:
        """The first of `count` neighbouring slots, at the start of a tile."""
        slot = self.used
        if slot + count > self.num_slots:
            raise TextTooLarge(
                f"the scratch has room for {self.num_slots} tokens, {slot} are taken and {count} "
                "are wanted: make it with more num_slots, or lay parts within scratch.room()"
            )
        self.used = -(-(slot + count) // self.tile) * self.tile
        return slot

    def _compute_later(
        self, part: Part, behind: Sequence[Part], wants_logits: bool = False
    ) -> None:
        """A span for the part's own tokens; its context lies directly before it."""
        start = sum(map(len, behind))
        slots = [(POOL, part.slot + i) for i in range(len(part))]
        positions = range(part.first, part.first + len(part))
        tiles = self._tiles([*behind, part], part.first - start)
        self._queue(Span(start, part.tokens, positions, slots, tiles, wants_logits))

    def _queue(self, span: Span) -> None:
        end, limit = span.positions[-1] + 1, self.runner.max_context
        if end > limit:
            raise ContextTooLong(f"the context has {end} tokens, the model takes {limit}: cut it")
        self._spans.append(span)

    def _tiles(self, parts: Sequence[Part], offset: int) -> list[TileRef]:
        """The tiles of a context whose first token has the position `offset`."""
        tiles, first = [], 0
        for part in parts:
            shift = part.sense * (first + offset - part.first)
            for start in range(0, len(part), self.tile):
                length = min(self.tile, len(part) - start)
                tiles.append(TileRef(POOL, part.slot + start, first + start, length, shift=shift))
            first += len(part)
        return tiles
