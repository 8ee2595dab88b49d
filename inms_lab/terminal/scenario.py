"""The main job's material: three agents with common texts and a context of their own, cut to size.

Pure data: no model, no engine. The order is the one that sharing wants: system prompt and tools
(global), decisions (group), then each agent's own context and its request (private). The texts are
the package's own, or real ones from a data folder; the tokenizer is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path

from inms_lab.errors import BadInput
from inms_lab.terminal import recordings

Tokens = tuple[int, ...]

AGENTS = ("architect", "backend", "frontend")
DEFAULT_SCALE = 0.125  # 1024 tokens an agent: the three modes in under a minute on two cores

_REQUEST = "\n\n## Request to the {agent}\n\n{request} Use one short paragraph.\n\n## Answer\n\n"
_REQUESTS = {
    "architect": "State what the service must answer when POST /orders is sent twice with the same"
    " key, and name the decision that says so.",
    "backend": "Say in which order the rows of stock are locked when an order is created, why, and"
    " which test shows it.",
    "frontend": "Describe what the review page does when the quote has run out, and what the"
    " customer reads.",
}
_CASE_REQUEST = "Write the next message to the customer of this case, following the policy."


@dataclass(frozen=True, slots=True)
class Scenario:
    """Texts: what all agents read, what the team published, what each agent holds alone.

    `private` and `task` map the agent's name to its own context and to its final request;
    `source` says where the texts come from.
    """

    system: str
    tools: str
    decisions: tuple[str, ...]
    private: Mapping[str, str]
    task: Mapping[str, str]
    source: str


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers of tokens; `own` covers an agent's private context and its request together."""

    system: int = 2048
    tools: int = 1536
    decisions: int = 1024
    own: int = 3456
    output: int = 128

    @classmethod
    def at(cls, scale: float) -> Budget:
        """The budget of scale 1.0 times `scale`, each part rounded and at least 16 tokens."""
        if not (math.isfinite(scale) and scale > 0):
            raise BadInput(f"scale must be a positive number, got {scale}; 1.0 is the full size")
        full = cls()
        return cls(*(max(16, round(getattr(full, part.name) * scale)) for part in fields(cls)))

    @property
    def shared(self) -> int:
        return self.system + self.tools + self.decisions

    @property
    def total(self) -> int:
        """Tokens of one agent at its end, output included."""
        return self.shared + self.own + self.output


@dataclass(frozen=True, slots=True)
class TokenScenario:
    """A scenario as token ids, each part the head of its text within `budget`.

    `text` holds the same parts as text, for people; tokenising it again may split the last word
    of a part differently, so engines take the ids. `budget.output` is the number of tokens that
    each agent writes.
    """

    system: Tokens
    tools: Tokens
    decisions: tuple[Tokens, ...]
    private: Mapping[str, Tokens]
    task: Mapping[str, Tokens]
    budget: Budget
    text: Scenario

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.private)

    @property
    def record(self) -> Tokens:
        """All decisions as one record, for an engine that publishes them together."""
        return sum(self.decisions, ())

    @property
    def shared(self) -> Tokens:
        """What every agent reads first: system, tools, decisions."""
        return self.system + self.tools + self.record

    def own(self, agent: str) -> Tokens:
        """Private context, then the request."""
        return self.private[agent] + self.task[agent]

    def missing(self) -> dict[str, int]:
        """Parts whose text ended before the budget did, with the number of tokens not filled."""
        have = {
            "system": (len(self.system), self.budget.system),
            "tools": (len(self.tools), self.budget.tools),
            "decisions": (len(self.record), self.budget.decisions),
            **{name: (len(self.own(name)), self.budget.own) for name in self.agents},
        }
        return {part: want - got for part, (got, want) in have.items() if got < want}


def texts(data: Path | None = None) -> Scenario:
    """The uncut texts: the package's own, or real ones when `data` names their folder."""
    return _own_texts() if data is None else _real_texts(Path(data))


def load(
    tokens_of: Callable[[str], list[int]],
    text_of: Callable[[list[int]], str],
    scale: float = DEFAULT_SCALE,
    data: Path | None = None,
) -> TokenScenario:
    """The scenario in tokens of the caller's tokenizer, cut to the budget at `scale`.

    Every cut keeps the head of the token list, so equal arguments give equal ids. A text shorter
    than its budget stays whole (`missing` tells). Raises `BadInput` for a scale that is not
    positive and for a data folder that lacks a file.
    """
    budget = Budget.at(scale)
    whole = texts(data)

    def cut(text: str, room: int) -> tuple[Tokens, str]:
        ids = tokens_of(text)
        return (tuple(ids), text) if len(ids) <= room else (tuple(ids[:room]), text_of(ids[:room]))

    system, system_text = cut(whole.system, budget.system)
    tools, tools_text = cut(whole.tools, budget.tools)
    records: list[tuple[Tokens, str]] = []
    for record in whole.decisions:
        room = budget.decisions - sum(len(ids) for ids, _ in records)
        if room == 0:
            break
        records.append(cut(record, room))
    # The request comes last and must survive small scales, so it is given its place first.
    tasks = {name: cut(text, budget.own // 2) for name, text in whole.task.items()}
    private = {
        name: cut(text, budget.own - len(tasks[name][0])) for name, text in whole.private.items()
    }
    return TokenScenario(
        system=system,
        tools=tools,
        decisions=tuple(ids for ids, _ in records),
        private={name: ids for name, (ids, _) in private.items()},
        task={name: ids for name, (ids, _) in tasks.items()},
        budget=budget,
        text=Scenario(
            system=system_text,
            tools=tools_text,
            decisions=tuple(text for _, text in records),
            private={name: text for name, (_, text) in private.items()},
            task={name: text for name, (_, text) in tasks.items()},
            source=whole.source,
        ),
    )


def _own_texts() -> Scenario:
    folder = files("inms_lab") / "texts"
    decisions = (folder / "decisions.md").read_text("utf-8")
    return Scenario(
        system=(folder / "system.md").read_text("utf-8"),
        tools=(folder / "tools.json").read_text("utf-8"),
        decisions=tuple(f"## {record}" for record in decisions.split("## ") if record),
        private={name: (folder / f"{name}.md").read_text("utf-8") for name in AGENTS},
        task={name: _REQUEST.format(agent=name, request=_REQUESTS[name]) for name in AGENTS},
        source="inms_lab/texts: the checkout of a small online shop",
    )


def _real_texts(folder: Path) -> Scenario:
    """Airline support on real recordings; the agents keep their names, so results compare."""
    real = recordings.read(folder)
    return Scenario(
        system=f"{real.policy}\n\n## Functions of the airline\n\n{real.functions}\n",
        tools=real.tools,
        decisions=real.closed_cases,
        private=dict(zip(AGENTS, real.open_cases, strict=True)),
        task={name: _REQUEST.format(agent=name, request=_CASE_REQUEST) for name in AGENTS},
        source=", ".join(recordings.FILES),
    )
