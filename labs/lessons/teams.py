"""What a few agents of two teams do, one thing after another: a story, and runs made by chance."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

PROMPT = "you work in one shop and answer in one short sentence"
RULE = "every customer pays once and gets one parcel"
NOTE = "the bank is closing in spring"
PLAN = "we move the shop to the harbour in may"
OTHER = "letters are answered within two days"
TEXTS = (NOTE, PLAN, RULE, OTHER, "the printer is out of ink", "parcels leave at noon and at six")
NUM_RANDOM = 70  # operations of each random run


@dataclass(frozen=True, slots=True)
class Op:
    """`who` does it; `text` is read or published; `teams`: whose records may be read, or the one
    that a record is of; `number`: of the record."""

    verb: str
    who: str
    text: str = ""
    teams: tuple[str, ...] = ()
    number: int = 0

    def words(self) -> str:
        """As a check says it."""
        if self.verb == "attach":
            return f"{self.who} attaches {self.teams[0]}/{self.number}"
        to = f" to {self.teams[0]}" if self.verb == "publish" else ""
        text = f" {self.text!r}" if self.text else ""
        return f"{self.who} {self.verb}{'es' if self.verb == 'publish' else 's'}{to}{text}"


def story() -> tuple[Op, ...]:
    """A few agents of two teams. Each operation that mounts is one that some mistake gets wrong."""
    checkout, support = ("checkout",), ("support",)
    return (
        Op("come", "ada", teams=checkout),
        Op("come", "ben", teams=checkout),
        Op("publish", "ada", RULE, checkout),
        Op("attach", "ada", teams=checkout, number=1),
        Op("attach", "ben", teams=checkout, number=1),
        Op("read", "ada", NOTE),
        Op("read", "ben", NOTE),  # the same words, but ada's
        Op("fork", "ada"),
        Op("read", "ada", PLAN),
        Op("read", "ada fork", PLAN),  # hers
        Op("come", "cleo", teams=support),
        Op("read", "cleo", OTHER),
        Op("read", "cleo", RULE),  # she has guessed the words of the other team
        Op("come", "dana at checkout", teams=checkout),
        Op("attach", "dana at checkout", teams=checkout, number=1),
        Op("read", "dana at checkout", PLAN),
        Op("come", "dana at support", teams=support),  # the same person, with other rights
        Op("read", "dana at support", PLAN),
        Op("publish", "ada", NOTE, checkout),  # and not her own KV of it
        Op("attach", "ben", teams=checkout, number=2),  # a fragment, behind his own
        Op("publish", "cleo", OTHER, support),
        Op("come", "eve", teams=("checkout", "support")),
        Op("attach", "eve", teams=support, number=1),
        Op("attach", "eve", teams=checkout, number=2),
        Op("read", "eve", PLAN),
    )


@cache
def random_story(seed: int) -> tuple[Op, ...]:
    """Anything that the same people might do."""
    rng, ops = random.Random(f"labels {seed}"), list[Op]()
    teams: dict[str, tuple[str, ...]] = {
        "ada": ("checkout",),
        "ben": ("checkout",),
        "cleo": ("support",),
    }
    teams |= {"eve": ("checkout", "support"), "dana at checkout": ("checkout",)}
    teams["dana at support"] = ("support",)
    records = dict.fromkeys(("checkout", "support"), 0)
    ops += [Op("come", who, teams=mine) for who, mine in teams.items()]
    length = dict.fromkeys(teams, 0)
    while len(ops) < NUM_RANDOM:
        who, verb = rng.choice(list(teams)), rng.choice(("read", "read", "attach", "publish"))
        team, text = rng.choice(teams[who]), rng.choice(TEXTS)
        if verb == "publish":
            records[team] += 1
            ops.append(Op(verb, who, text, (team,)))
        elif verb == "attach" and records[team]:
            ops.append(Op(verb, who, teams=(team,), number=rng.randint(1, records[team])))
        elif verb == "read" and length[who] < 12:
            length[who] += 1
            ops.append(Op(verb, who, text))
    return tuple(ops)
