"""Leak rank: does KV of a shared text tell a reader the secret that its author had in mind?

A's private text holds one of k candidates; then A writes a shared text that does not name it. B,
who may read the shared text only, has it in one of the ways of variants.py:

    private         KV that A computed, behind its private text: the leak
    public          encoded again behind the public prefix, as `team.publish` does
    full prefill    computed by B itself: it cannot tell anything

and ranks the candidates. What B may look at:

    logits          how likely the model finds each candidate after a question
    less own        the same, less what it finds when B computes the text itself
    vectors         KV itself: B encodes the text behind each candidate and takes the nearest

Ranks count from 0; (k - 1) / 2 is chance. AUC of a trial: the share of wrong candidates that are
ranked behind the true one. Equal scores share their places.
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
from inms_lab.interference.variants import FULL, PRIVATE, PUBLIC
from inms_lab.model.progress import bar
from inms_lab.model.runner import Runner
from inms_lab.notebook.text import Text

LOGITS, LESS_OWN, VECTORS = "logits", "less own", "vectors"
HEAD = 8  # tokens of the shared text that are compared as vectors

Tokens = tuple[int, ...]
Scores = dict[str, dict[str, list[float]]]  # variant -> reader -> of each candidate


@dataclass(frozen=True, slots=True)
class Trial:
    """Token ids. `private` is A's text for each candidate, of which number `truth` is real;
    `options` are the candidates as they would follow B's `probe`."""

    public: Tokens
    private: tuple[Tokens, ...]
    shared: Tokens
    own: Tokens
    probe: Tokens
    options: tuple[Tokens, ...]
    truth: int

    @property
    def digest(self) -> str:
        """16 hex digits that name its tokens."""
        parts = (self.public, self.private, self.shared, self.own, self.probe, self.options)
        return blake2b(json.dumps((*parts, self.truth)).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Leak:
    """The scores that each reader gave in each trial."""

    truths: list[int]
    scores: list[Scores]

    def trials(self) -> pd.DataFrame:
        """A row a trial, variant and reader: `rank`, `top1` (0 to 1; shared by equals), `auc`."""
        rows = []
        for number, (truth, scores) in enumerate(zip(self.truths, self.scores, strict=True)):
            for variant, readers in scores.items():
                for reader, values in readers.items():
                    place, first = rank(values, truth)
                    auc = 1 - place / (len(values) - 1)
                    rows.append((number, variant, reader, place, first, auc))
        names = ["trial", "variant", "reader", "rank", "top1", "auc"]
        return pd.DataFrame(rows, columns=names)

    def table(self, seed: int = 0) -> pd.DataFrame:
        """A row a variant and reader: means with the ends of their 95 % bootstrap intervals."""
        rows = {}
        for key, group in self.trials().groupby(["variant", "reader"], sort=False):
            row: dict[str, float] = {"trials": len(group)}
            for what in ("top1", "rank", "auc"):
                found = compare.bootstrap(group[what].to_list(), seed)
                row |= {what: found.mean, f"{what}_low": found.low, f"{what}_high": found.high}
            rows[key] = row
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["variant", "reader"])


def rank(scores: Sequence[float], truth: int) -> tuple[float, float]:
    """Place of the true candidate from 0, and its share of the first place."""
    better = sum(score > scores[truth] for score in scores)
    equal = sum(score == scores[truth] for score in scores)
    return better + (equal - 1) / 2, (better == 0) / equal


def of_package(text: Text, count: int, num_candidates: int = 10, seed: int = 0) -> list[Trial]:
    """Trials of the package's sentences about an invented workshop; equal seeds, equal trials."""
    source = files("inms_lab.interference") / "texts" / "leak.json"
    told = json.loads(source.read_text(encoding="utf-8"))
    known = min(len(kind["candidates"]) for kind in told["secrets"])
    if not 2 <= num_candidates <= known:
        raise BadInput(f"there are 2 to {known} candidates, not {num_candidates}")
    rng = random.Random(seed)
    return [_drawn(told, text, num_candidates, rng) for _ in range(count)]


def measure(
    runner: Runner,
    trials: Sequence[Trial],
    path: str | Path | None = None,
    *,
    head: int = HEAD,
    progress: bool = True,
) -> Leak:
    """Every reader's scores in every trial that `path` does not hold yet."""
    lines = Lines(path, {"leak": 1, "model": runner.digest, "head": head})
    scratch = Scratch(runner, num_slots=max((_room(trial) for trial in trials), default=0))
    scores = []
    try:
        with bar(len(trials), "leak rank", unit="trial", enabled=progress) as shown:
            for trial in trials:
                found = lines.find(trial.digest)
                if found is None:
                    found = examine(scratch, trial, head)
                    lines.append(trial.digest, found)
                scores.append(found)
                shown.update()
    finally:
        scratch.close()
    return Leak([trial.truth for trial in trials], scores)


def examine(scratch: Scratch, trial: Trial, head: int = HEAD) -> Scores:
    """What each reader makes of one trial; the scratch is as before afterwards."""
    with scratch.room():
        public = scratch.lay(trial.public)
        minds = [scratch.lay(text, [public]) for text in trial.private]
        own = scratch.lay(trial.own, [public])
        ways = {
            PRIVATE: scratch.lay(trial.shared, [public, minds[trial.truth]]),
            PUBLIC: scratch.lay(trial.shared, [public]),
            FULL: scratch.lay(trial.shared, [public, own]),
        }
        guesses = [scratch.lay(trial.shared[:head], [public, mind]) for mind in minds]
        scratch.compute()
        contexts = [[public, own, part] for part in ways.values()]
        asked = [[*context, scratch.lay(trial.probe, context)] for context in contexts]
        scratch.compute()
        by_way = dict(zip(ways, log_likelihoods(scratch, asked, trial.options), strict=True))
        out: Scores = {}
        for way, values in by_way.items():
            out[way] = {LOGITS: values}
            if way != FULL:
                out[way][LESS_OWN] = [a - b for a, b in zip(values, by_way[FULL], strict=True)]
                out[way][VECTORS] = [-_distance(scratch, ways[way], guess) for guess in guesses]
        return out


def _distance(scratch: Scratch, got: Part, guess: Part) -> float:
    """Between the vectors of the first tokens, the keys turned to one place."""
    there = scratch.kv(got[: len(guess)]).double()
    return float((scratch.kv(guess, at=got.first).double() - there).norm())


def _drawn(told: dict[str, Any], text: Text, num_candidates: int, rng: random.Random) -> Trial:
    secret = rng.choice(told["secrets"])
    candidates = rng.sample(secret["candidates"], num_candidates)
    mind = rng.choice(secret["private"])
    report = [*rng.sample(secret["touching"], 2), *rng.sample(told["filler"], 4)]
    rng.shuffle(report)
    question = [*text.encode(secret["question"], "user"), *text.open_turn("assistant")]
    return Trial(
        public=tuple(text.encode(told["public"], "system")),
        private=tuple(tuple(text.encode(mind.format(c), "user")) for c in candidates),
        shared=tuple(text.encode(" ".join(report), "user")),
        own=tuple(text.encode(rng.choice(told["own"]), "user")),
        probe=(*question, *text.encode(secret["answer"])),
        options=tuple(tuple(text.encode(f" {c}")) for c in candidates),
        truth=rng.randrange(num_candidates),
    )


def _room(trial: Trial, tile: int = 64) -> int:
    """Slots for everything that is laid at once."""
    k = len(trial.options)
    shared, minds = len(trial.shared), sum(map(len, trial.private))
    need = len(trial.public) + minds + len(trial.own) + (3 + k) * shared
    asked = 3 * (len(trial.probe) + sum(map(len, trial.options)))
    return need + asked + tile * (8 + 5 * k)
