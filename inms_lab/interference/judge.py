"""Judge consistency: does a decision change when the text that it is about is a reused fragment?

A reader has a shared text and answers a multiple-choice question about it: the option that the
model finds most likely is its decision. Two kinds of questions:

    lookup    the text says it, among other facts: a wide margin
    choice    one of three offers is better in every respect: a narrow one for a small model

The decision is taken with the text computed by the reader itself (full prefill) and in the other
ways of variants.py:

    changed   another decision than with full prefill
    correct   the option that the text says, or that is the better one
    swayed    the option that the author wishes for in private, and did not write

The private text behind which the leaky variant is encoded names that very option.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from inms_lab.errors import BadInput
from inms_lab.interference import compare
from inms_lab.interference.contexts import Part, Scratch
from inms_lab.interference.likelihood import log_likelihoods
from inms_lab.interference.resume import Lines
from inms_lab.interference.variants import ALONE, FULL, MISSING, PRIVATE, PUBLIC
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner
from inms_lab.notebook.text import Text

Tokens = tuple[int, ...]
WAYS = (FULL, PUBLIC, ALONE, PRIVATE, MISSING)


@dataclass(frozen=True, slots=True)
class Item:
    """Token ids of one question. Of the `options`, number `truth` is right by the shared text, and
    number `doubt` is named in the author's private one."""

    kind: str
    public: Tokens
    private: Tokens
    shared: Tokens
    own: Tokens
    question: Tokens
    options: tuple[Tokens, ...]
    truth: int
    doubt: int

    @property
    def digest(self) -> str:
        """16 hex digits that name its tokens."""
        parts = (self.public, self.private, self.shared, self.own, self.question, self.options)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Decisions:
    """The log-likelihood of every option, for each item by variant."""

    items: list[Item]
    scores: list[dict[str, list[float]]]

    def decisions(self) -> pd.DataFrame:
        """A row an item and variant: the `decision`; whether it is changed, correct, swayed."""
        rows = []
        for number, (item, scores) in enumerate(zip(self.items, self.scores, strict=True)):
            for way, values in scores.items():
                taken = _best(values)
                same = taken == _best(scores[FULL])
                found = not same, taken == item.truth, taken == item.doubt
                rows.append((number, item.kind, way, taken, *found))
        names = ["item", "kind", "variant", "decision", "changed", "correct", "swayed"]
        return pd.DataFrame(rows, columns=names)

    def table(self, seed: int = 0) -> pd.DataFrame:
        """A row a kind and variant: rates, and the ends of their 95 % intervals over items."""
        rows = {}
        for key, group in self.decisions().groupby(["kind", "variant"], sort=False):
            row: dict[str, float] = {"items": len(group)}
            for what in ("changed", "correct", "swayed"):
                found = compare.bootstrap(group[what].to_list(), seed)
                row |= {what: found.mean, f"{what}_low": found.low, f"{what}_high": found.high}
            rows[key] = row
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["kind", "variant"])


def of_package(text: Text, count: int, num_options: int = 3, seed: int = 0) -> list[Item]:
    """`count` items of each kind, of the package's sentences about an invented workshop.

    Equal seeds give equal items.
    """
    source = files("inms_lab.interference") / "texts" / "judge.json"
    told = json.loads(source.read_text(encoding="utf-8"))
    known = min(len(fact["options"]) for fact in told["facts"])
    if not 2 <= num_options <= known:
        raise BadInput(f"there are 2 to {known} options, not {num_options}")
    rng = random.Random(seed)
    kinds = {"lookup": _lookup, "choice": _choice}
    return [
        _item(kind, told, text, draw(told, num_options, rng), rng)
        for kind, draw in kinds.items()
        for _ in range(count)
    ]


def measure(
    runner: Runner,
    items: Sequence[Item],
    path: str | Path | None = None,
    *,
    progress: bool = True,
) -> Decisions:
    """The scores of every item that `path` does not hold yet."""
    lines = Lines(path, {"judge": 1, "model": runner.digest})
    scratch = Scratch(runner, num_slots=max((_room(item) for item in items), default=0))
    scores = []
    try:
        with bar(len(items), "judge consistency", unit="item", enabled=progress) as shown:
            for item in items:
                found = lines.find(item.digest)
                if found is None:
                    found = examine(scratch, item)
                    lines.append(item.digest, found)
                scores.append(found)
                shown.update()
    finally:
        scratch.close()
    return Decisions(list(items), scores)


def examine(scratch: Scratch, item: Item) -> dict[str, list[float]]:
    """The log-likelihood of each option, by variant; the scratch is as before afterwards."""
    with scratch.room():
        public = scratch.lay(item.public)
        mind, own = (scratch.lay(text, [public]) for text in (item.private, item.own))
        before = [public, own]
        behind: dict[str, list[Part]] = {FULL: before, PUBLIC: [public], ALONE: []}
        behind[PRIVATE] = [public, mind]
        mounted = {way: [scratch.lay(item.shared, behind[way])] for way in behind} | {MISSING: []}
        scratch.compute()
        contexts = [[*before, *mounted[way]] for way in WAYS]
        asked = [[*context, scratch.lay(item.question, context)] for context in contexts]
        scratch.compute()
        return dict(zip(WAYS, log_likelihoods(scratch, asked, item.options), strict=True))


def _best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What was drawn for an item: the sentences of the shared text, and what is asked."""

    said: list[str]
    asked: dict[str, Any]
    options: list[str]
    truth: int


def _lookup(told: dict[str, Any], num_options: int, rng: random.Random) -> _Drawn:
    """Five facts, one of them asked for."""
    asked, *others = rng.sample(told["facts"], 5)
    options = rng.sample(asked["options"], num_options)
    truth = rng.randrange(num_options)
    said = [asked["fact"].format(options[truth])]
    said += [fact["fact"].format(rng.choice(fact["options"])) for fact in others]
    rng.shuffle(said)
    return _Drawn([told["opening"], *said], asked, options, truth)


def _choice(told: dict[str, Any], num_options: int, rng: random.Random) -> _Drawn:
    """Offers; one has the lowest price, comes soonest and lasts longest."""
    asked = rng.choice(told["choices"])
    options = rng.sample(asked["names"], num_options)
    truth = rng.randrange(num_options)
    prices, days = (sorted(rng.sample(range(12, 40), num_options)) for _ in range(2))
    years = sorted(rng.sample(range(1, 10), num_options), reverse=True)
    others = [i for i in range(num_options) if i != truth]
    place = {i: n for n, i in enumerate([truth, *others])}
    said = [
        asked["offer"].format(name, prices[place[i]], days[place[i]], years[place[i]])
        for i, name in enumerate(options)
    ]
    return _Drawn([asked["opening"], *said], asked, options, truth)


def _item(kind: str, told: dict[str, Any], text: Text, drawn: _Drawn, rng: random.Random) -> Item:
    asked, options = drawn.asked, drawn.options
    doubt = rng.choice([i for i in range(len(options)) if i != drawn.truth])
    question = [*text.encode(asked["question"], "user"), *text.open_turn("assistant")]
    return Item(
        kind=kind,
        public=tuple(text.encode(told["public"], "system")),
        private=tuple(text.encode(asked["doubt"].format(options[doubt]), "user")),
        shared=tuple(text.encode(" ".join(drawn.said), "user")),
        own=tuple(text.encode(rng.choice(told["own"]), "user")),
        question=(*question, *text.encode(asked["answer"])),
        options=tuple(tuple(text.encode(f" {option}")) for option in options),
        truth=drawn.truth,
        doubt=doubt,
    )


def _room(item: Item, tile: int = 64) -> int:
    """Slots for everything that is laid at once."""
    ways = len(WAYS)
    asked = ways * (len(item.question) + sum(map(len, item.options)))
    need = len(item.public) + len(item.private) + len(item.own) + ways * len(item.shared)
    return need + asked + tile * (4 + ways * (2 + len(item.options)))
