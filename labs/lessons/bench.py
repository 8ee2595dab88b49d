"""Lab 07: readers of a record that was encoded behind public text only, to try blocks on.

Each reader has the public text and a prompt of its own; then it attaches the record, eight blocks
of sixteen tokens, and goes on from there. Some blocks of the record may be computed afresh, behind
what the reader really has before it: `Reader.kl` says what that brings.

The texts are the package's own logs of an invented team. Of every log that stretch of messages is
taken, of three, which costs most where nothing is computed afresh (`benchmarks/blocks_afresh.py`
has measured them all). Logs with odd numbers are for practice, the others are held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from json import loads
from typing import Any

import numpy as np

from inms_lab.errors import BadInput
from inms_lab.interference import compare
from inms_lab.interference.contexts import Part, Scratch
from inms_lab.interference.samples import OWN_LOGS, Sample, Sizes, of_logs
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner
from inms_lab.notebook.text import Text

BLOCK, NUM_BLOCKS, NEXT = 16, 8, 32  # tokens of a block; blocks; tokens that come after them
SIZES = Sizes(own=128, fragment=BLOCK * NUM_BLOCKS, continuation=NEXT)
LAYERS = 10  # of which a deviation is known: a third of the model's
STARTS = (0, 1, 3)  # the stretches begin with these messages
COSTLY = {1: 0, 2: 3, 3: 0, 4: 0, 5: 3, 6: 3, 7: 1, 8: 1}  # log: where its stretch begins
PRACTICE, HELD_OUT = (1, 3, 5, 7), (2, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Messages of one log from number `start` on."""

    log: int
    start: int
    sample: Sample


class Reader:
    """Someone who reads a record behind a context that it was not encoded behind.

    `deviation` [layers, blocks]: how far the record's KV is from what the reader would compute, a
    row a layer (0 to 9), as a share; `every_layer`: the rest too. `sample`: its tokens.
    """

    def __init__(self, scratch: Scratch, public: Part, stretch: Stretch) -> None:
        self.name, self.sample = stretch.sample.name, stretch.sample
        self.public_only = False  # while somebody chooses, nothing is told but the deviation
        own = scratch.lay(self.sample.own, [public])
        self._before, self._scratch = [public, own], scratch
        full = scratch.lay(self.sample.fragment, self._before)
        self._record = scratch.lay(self.sample.fragment, [public])
        scratch.compute()
        got = compare.kv_as_read(scratch, [self._record], self.sample.place)
        error = compare.kv_error(scratch.kv(full), got).mean(dim=1)  # keys and values
        blocks = [part.mean(dim=-1) for part in error.split(BLOCK, dim=-1)]
        self.every_layer = np.array([block.numpy() for block in blocks]).T
        self.every_layer.setflags(write=False)
        self.deviation = self.every_layer[:LAYERS]
        with scratch.room():
            self._truth = scratch.logits(self.sample.continuation, [*self._before, full])[:-1]
        self._known: dict[tuple[int, ...], float] = {}

    def __repr__(self) -> str:
        return f"<reader of {self.name}>"

    def kl(self, blocks: Iterable[int] = ()) -> float:
        """KL to full prefill, nats a token, mean over the next tokens, if these blocks of the
        record are computed afresh and the others are reused."""
        if self.public_only:
            raise BadInput("whoever chooses has the deviation only: a server has no KL to look at")
        picked = tuple(sorted(set(blocks)))
        if picked not in self._known:
            tokens = [BLOCK * block + i for block in picked for i in range(BLOCK)]
            with self._scratch.room():
                runs = self._scratch.recompute(self._record, tokens, self._before)
                self._scratch.ask(self.sample.continuation, [*self._before, *runs])
                rows = self._scratch.compute()[-1][:-1]
            self._known[picked] = float(compare.kl(self._truth, rows).mean())
        return self._known[picked]


class Bench:
    """Four readers to practise with (`readers`), and four held out that a check has."""

    def __init__(self, runner: Runner, progress: bool = True) -> None:
        self.runner = runner
        self._scratch = Scratch(runner, num_slots=8192)
        self._stretches = stretches(Text(runner.tokenizer, runner.stop_tokens))
        self._public = self._scratch.encode(self._stretches[0].sample.public)
        self.readers = self._made(PRACTICE, progress)
        self._held_out: list[Reader] = []
        self.closed = False

    def __repr__(self) -> str:
        return f"<bench: {len(self.readers)} readers, {NUM_BLOCKS} blocks of {BLOCK} tokens each>"

    def held_out(self) -> list[Reader]:
        """The others; made when they are first wanted."""
        if not self._held_out:
            self._held_out = self._made(HELD_OUT, progress=False)
        return self._held_out

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """In this block no reader tells its KL."""
        everybody = [*self.readers, *self._held_out]
        for reader in everybody:
            reader.public_only = True
        try:
            yield
        finally:
            for reader in everybody:
                reader.public_only = False

    def close(self) -> None:
        """Give the memory back: no reader tells anything new from then on."""
        self._scratch.close()
        self.closed = True

    def _made(self, logs: Sequence[int], progress: bool) -> list[Reader]:
        wanted = [s for s in self._stretches if s.log in logs and s.start == COSTLY[s.log]]
        with bar(len(wanted), "readers", unit="reader", enabled=progress) as shown:
            made = []
            for stretch in wanted:
                made.append(Reader(self._scratch, self._public, stretch))
                shown.update()
        return made


def stretches(text: Text) -> list[Stretch]:
    """Every stretch of every log that is long enough. Its reader is the agent who did not write its
    first message."""
    source = files("inms_lab.interference") / "texts" / OWN_LOGS
    told = loads(source.read_text(encoding="utf-8"))
    found = []
    for start in STARTS:
        for number, log in enumerate(told["logs"], 1):
            sample = of_logs([_from(log, start)], text, SIZES, told["public"])[0]
            found.append(Stretch(number, start, sample))
    return sorted(found, key=lambda stretch: (stretch.log, stretch.start))


def _from(log: dict[str, Any], start: int) -> dict[str, Any]:
    """The log from this message on, its reader's prompt first."""
    history = log["history"][start:]
    prompts = sorted(log["system_prompt"].items(), key=lambda item: item[0] == history[0]["name"])
    name = f"{log['file']}, from message {start}"
    return {"file": name, "system_prompt": dict(prompts), "history": history}
