"""Fact tasks about invented teams: decisions, guesses that contradict them, decisions that change.

A team has two agents that decide (numbers 0 and 1) and a reader (2). Its texts, by tier:

    global     the prompt
    group      records of three facts each, every record published by one of the two agents; one of
               them is replaced half-way by a version in which all three facts are changed
    private    each deciding agent's guesses, which contradict the facts that it decides; the
               reader's notes, which name none of them

A task asks the reader for one fact. Its options have equal numbers of tokens; besides the right one
there are another agent's private guess, for a changed fact the stale value, and values that no text
of the team names. All values are drawn without regard to the model, so an option that nobody hinted
at is as likely to be the guess as any other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from inms_lab.errors import BadInput
from inms_lab.notebook.text import Text

Tokens = tuple[int, ...]

DECIDERS, READER = (0, 1), 2
NUM_FACTS = 3  # of a record
SETTLED, UPDATED = "settled", "updated"
NUM_OPTIONS = 4


@dataclass(frozen=True, slots=True)
class Decision:
    """A record's text, of its author; `changed` replaces it half-way, if it is not empty."""

    author: int
    text: Tokens
    changed: Tokens = ()


@dataclass(frozen=True)
class Team:
    """Token ids of a team's texts. `private[i]` is known to agent i alone."""

    name: str
    prompt: Tokens
    decisions: tuple[Decision, ...]
    private: tuple[Tokens, ...]

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name its texts."""
        parts = (self.prompt, [(d.author, d.text, d.changed) for d in self.decisions], self.private)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    @property
    def current(self) -> list[Tokens]:
        """The texts of the decisions as they hold in the end."""
        return [d.changed or d.text for d in self.decisions]


@dataclass(frozen=True)
class Task:
    """A question for the reader: token ids of the turns that ask it, and of the options that may
    follow. `right`, `guess` (an agent's private one) and `stale` (-1: none) number the options."""

    team: Team
    kind: str
    asked: str  # the question in words
    said: tuple[str, ...]  # the options in words
    question: Tokens
    options: tuple[Tokens, ...]
    right: int
    guess: int
    stale: int

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name its tokens."""
        parts = (self.team.digest, self.question, self.options, self.right, self.guess, self.stale)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    @property
    def others(self) -> list[int]:
        """The options that no text of the team names."""
        named = {self.right, self.guess, self.stale}
        return [number for number in range(len(self.options)) if number not in named]


def family(model: Any, count: int = 120, seed: int = 0) -> list[Task]:
    """`count` tasks in teams of six; equal seeds give equal tasks. Half are of changed facts.

    `model`: a loaded one, or its `Text`. Raises `BadInput` where its tokenizer leaves too few
    values of equal length.
    """
    if count < 1:
        raise BadInput(f"at least one task is wanted, not {count}")
    text = model if isinstance(model, Text) else Text(model.tokenizer, model.stop_tokens)
    source = files("inms_lab.experiment") / "texts" / "facts.json"
    told = json.loads(source.read_text(encoding="utf-8"))
    facts = [fact for fact in told["facts"] if len(_equals(fact, text)) > NUM_OPTIONS]
    needed = NUM_FACTS * len(DECIDERS)
    if len(facts) < needed:
        raise BadInput(
            f"this tokenizer leaves {len(facts)} kinds of facts with options of equal length, "
            f"{needed} are needed: write kinds for it into {source}"
        )
    tasks: list[Task] = []
    for number in range(-(-count // needed)):
        tasks += _team(told, facts, text, number, random.Random(f"{seed}/{number}"))
    return tasks[:count]


def teams_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks by team, in order."""
    teams: dict[str, list[Task]] = {}
    for task in tasks:
        teams.setdefault(task.team.digest, []).append(task)
    return list(teams.values())


class _Fact:
    """One fact of one team: its value, the guess, and the value before it was changed."""

    def __init__(self, told: dict[str, Any], subject: str, text: Text, rng: random.Random) -> None:
        self.told, self.subject = told, subject
        values = _equals(told, text)
        self.right, self.guess, self.old, *rest = rng.sample(values, NUM_OPTIONS + 1)
        self.rest = rest

    def sentence(self, kind: str, value: str) -> str:
        return str(self.told[kind].format(subject=self.subject, value=value))

    def task(self, team: Team, kind: str, text: Text, rng: random.Random) -> Task:
        third = self.old if kind == UPDATED else self.rest[1]
        said = [self.right, self.guess, third, self.rest[0]]
        rng.shuffle(said)
        asked, begun = (self.sentence(part, "") for part in ("question", "answer"))
        before = self.told.get("before", "")
        opened = [*text.encode(asked, "user"), *text.open_turn("assistant")]
        return Task(
            team=team,
            kind=kind,
            asked=asked,
            said=tuple(before.strip() + value for value in said),
            question=(*opened, *text.encode(begun + before)),
            options=tuple(_option(self.told, value, text) for value in said),
            right=said.index(self.right),
            guess=said.index(self.guess),
            stale=said.index(self.old) if kind == UPDATED else -1,
        )


def _team(
    told: dict[str, Any], facts: list[dict[str, Any]], text: Text, number: int, rng: random.Random
) -> Iterator[Task]:
    """A team and its six tasks, those of the changed record among them."""
    name, product = told["teams"][number % len(told["teams"])], rng.choice(told["products"])
    count = NUM_FACTS * len(DECIDERS)
    kinds, subjects = rng.sample(facts, count), rng.sample(told["subjects"], count)
    drawn = [_Fact(f, s, text, rng) for f, s in zip(kinds, subjects, strict=True)]
    records = [drawn[NUM_FACTS * i : NUM_FACTS * (i + 1)] for i in DECIDERS]
    changed = rng.choice(DECIDERS)
    private = []
    decisions = []
    for author, record in zip(DECIDERS, records, strict=True):
        now = " ".join(fact.sentence("fact", fact.right) for fact in record)
        before = " ".join(fact.sentence("fact", fact.old) for fact in record)
        head, news = (told[part].format(number=author + 1) for part in ("decision", "changed"))
        texts = (f"{head} {before}", f"{news} {now}") if author == changed else (f"{head} {now}",)
        decisions.append(Decision(author, *(tuple(text.encode(x, "user")) for x in texts)))
        guesses = " ".join(fact.sentence("guess", fact.guess) for fact in record)
        private.append(tuple(text.encode(f"{rng.choice(told['thoughts'])} {guesses}", "user")))
    private.append(tuple(text.encode(rng.choice(told["notes"]), "user")))
    prompt = tuple(text.encode(told["prompt"].format(team=name, product=product), "system"))
    team = Team(name, prompt, tuple(decisions), tuple(private))
    for author, record in zip(DECIDERS, records, strict=True):
        for fact in record:
            yield fact.task(team, UPDATED if author == changed else SETTLED, text, rng)


def _option(fact: dict[str, Any], value: str, text: Text) -> Tokens:
    """A value as it follows the beginning of the answer."""
    return tuple(text.encode(value if "before" in fact else f" {value}"))


def _equals(fact: dict[str, Any], text: Text) -> list[str]:
    """The fact's values with the commonest number of tokens."""
    lengths = {value: len(_option(fact, value, text)) for value in fact["values"]}
    counts = list(lengths.values())
    wanted = max(sorted(set(counts)), key=counts.count)
    return [value for value, length in lengths.items() if length == wanted]
