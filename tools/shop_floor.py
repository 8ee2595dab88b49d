"""A shop's agents at work, without a model: readable texts, seeded, the same log each time.

Agents are hired, read tickets, write answers, drop drafts, and go. `plant_faults.py` lets them
work, and puts one fault into each of its logs.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import count
from typing import Any

from inms_lab.books import label
from inms_lab.books.events import Registered
from inms_lab.config import Config
from inms_lab.decisions.policy import by_name
from inms_lab.publishing.records import Prompt, Record, publish
from inms_lab.serving.request import Request
from inms_lessons.planted import CONTEXT, VOCABULARY, Scripted

SIZE = 16  # tokens of a block
BYTES = 46080  # of KV for a token, as the labs' model has
TEAM = "shop"
PIECES = re.compile(r"[\w'-]+|[^\w\s]")
NAMES = """ada ben cleo dan eve finn gus hana ivo jana karl lena mia noel otis pia quinn rosa sven
tara ulf vito wim xenia yara zeno abel bo cara dirk elsa fred greta hugo ilse jon kim lars maja
nico olaf petra rene sara theo ute vera walt yves zita"""
WHO = "anna bruno chen dora emil fatima gerd hedda igor jun"
WHAT = "notebooks pens inks papers folders stamps rulers boxes"
HOW = "red green blue black white small large lined plain thick"
TROUBLE = """arrived late|came without the invoice|went to the wrong door|was paid twice|is not in
the post yet|has a torn cover|holds one piece too few|was ordered by mistake"""
ANSWERS = """Dear {who}, your order {n} is on its way and comes on monday. We are sorry.
Dear {who}, we send the {what} again today, you pay nothing. Thank you.
Dear {who}, order {n} is cancelled and the money is on its way back.
Dear {who}, the {how} {what} are in the post. Please write again if they do not come."""


class Words:
    """A tokenizer whose tokens are words, numbered as they first appear."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"…": 0}
        self.pieces = [" …".encode()]

    def ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        return [self._id(word) for word in PIECES.findall(text)]

    def _id(self, word: str) -> int:
        if word not in self.known:
            self.known[word] = len(self.known)
            glue = "" if word in ".,:;!?)" else " "
            self.pieces.append(f"{glue}{word}".encode())
            assert len(self.pieces) < VOCABULARY
        return self.known[word]

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self.pieces[token]


@dataclass(slots=True, eq=False)
class Worker:
    """An agent: `base` tokens of its context are kept from one ticket to the next."""

    seq_id: int
    name: str
    base: int = 0


class Floor:
    """`blocks`: of the global, the group's and the private pool."""

    def __init__(self, seed: int, mode: str = "inms", blocks: tuple[int, int, int] = (16, 48, 160)):
        sizes = (n * SIZE * BYTES for n in blocks)
        config = Config(SIZE, 0, 512, CONTEXT, *sizes)
        self.engine = Scripted(by_name(mode), config, BYTES)
        self.log, self.books = self.engine.log, self.engine.ledger
        self.words, self.rng = Words(), random.Random(seed)
        self.log.piece, self.log.about["model"] = self.words.piece, "words, no weights"
        self.engine.open_pools((TEAM,), BYTES)
        self.crew: list[Worker] = []
        self.records: list[Record] = []
        self.prompts: list[Prompt] = []
        self.names, self.numbers = (
            iter(self.rng.sample(names := NAMES.split(), len(names))),
            count(1),
        )
        self.taken: set[str] = set()

    # what is shared -------------------------------------------------------------------------

    def preload(self, text: str) -> None:
        """Seal the prompt."""
        holder = self.engine.register("prompt", "prompt", label.PUBLIC)
        tokens = tuple(self.words.ids(text))
        self.prompts.append(Prompt(tokens, self.log.add_tokens(tokens)[0]))
        self._take(holder, *self.prompts)
        self.engine.settle()

    def publish(self, text: str, by: str) -> Record:
        """A record of the team's, behind the prompt and the records that are out."""
        name, tokens = f"{TEAM}/{next(self.numbers)}", tuple(self.words.ids(text))
        draft = Record(name, by, tokens, -1, -1, TEAM)
        out, _ = publish(self.engine, self.engine.submit, draft, self.prompts, self.records)
        self.records.append(out)
        self.engine.settle()
        return out

    def withdraw(self, record: Record, cause: str) -> None:
        """Nobody new is to read it: its holder is closed."""
        self._ask(record.seq_id, "close", cause=cause)
        self.engine.settle()

    def _take(self, seq_id: int, *texts: Prompt | Record) -> None:
        for text in texts:
            self.engine.submit(text.request(seq_id))

    # agents ---------------------------------------------------------------------------------

    def hire(self, name: str = "", attach: bool = True, off: tuple[str, ...] = ()) -> Worker:
        """A new agent that reads the prompt and, with `attach`, the team's records."""
        name = name or next(n for n in self.names if n not in self.taken)
        self.taken.add(name)
        clearance = label.join(label.private(name), *([label.group(TEAM)] if attach else []))
        seq_id = len(self.books.sequences)
        who = (seq_id, "agent", name, "default", tuple(sorted(clearance)))
        self.engine.cache.record(Registered(*who, self.engine.namespace.root(), off=off))
        self._take(seq_id, *self.prompts, *(self.records if attach else ()))
        self.engine.settle()
        return Worker(seq_id, name, self.books.sequences[seq_id].num_tokens)

    def fork(self, worker: Worker) -> Worker:
        """Another sequence of the same agent."""
        child = self._ask(worker.seq_id, "fork")
        self.engine.settle()
        return Worker(child.future.result(timeout=0), worker.name, worker.base)

    def read(self, worker: Worker, text: str) -> None:
        """Private text comes in."""
        self._ask(worker.seq_id, "append", self.words.ids(text))

    def write(self, worker: Worker, text: str) -> None:
        """The agent writes these words."""
        tokens = self.words.ids(text)
        self._ask(worker.seq_id, "write", count=len(tokens))
        self.engine.script[worker.seq_id].extend(tokens)

    def keep(self, worker: Worker, num_tokens: int) -> None:
        """Roll back to the first `num_tokens`."""
        self._ask(worker.seq_id, "rollback", count=num_tokens)

    def close(self, worker: Worker, cause: str = "closed") -> None:
        """End it."""
        self._ask(worker.seq_id, "close", cause=cause)
        self.engine.settle()
        if worker in self.crew:
            self.crew.remove(worker)

    def _ask(self, seq_id: int, verb: str, tokens: Any = (), **options: Any) -> Request:
        return self.engine.submit(Request(seq_id, verb, tokens, **options))

    # ordinary work --------------------------------------------------------------------------

    def ticket(self, sentences: int) -> str:
        """What customers write."""
        out = []
        for _ in range(sentences):
            order = f"order {self.rng.randrange(1000, 2000)} of {self.rng.randrange(2, 9)}"
            who, how, what = (self._pick(words) for words in (WHO, HOW, WHAT))
            out.append(f"{who} writes: my {order} {how} {what} {self._pick(TROUBLE, '|')}.")
        return " ".join(out)

    def answer(self) -> str:
        """What an agent writes back."""
        facts = {"who": self._pick(WHO), "what": self._pick(WHAT), "how": self._pick(HOW)}
        answer = self._pick(ANSWERS, "\n")
        return answer.format(n=self.rng.randrange(1000, 2000), **facts)

    def _pick(self, words: str, between: str = " ") -> str:
        return self.rng.choice(words.split(between))

    def work(self, num_events: int, longest: int = 300) -> None:
        """The crew works for so many events; a context of `longest` tokens begins a new ticket."""
        stop = len(self.log) + num_events
        while len(self.log) < stop:
            for worker in self.rng.sample(self.crew, min(len(self.crew), 2)):
                self._turn(worker, longest)
            self.engine.settle()

    def _turn(self, worker: Worker, longest: int) -> None:
        num_tokens = self.books.sequences[worker.seq_id].num_tokens
        chance = self.rng.random()
        if num_tokens > worker.base + longest:
            self.keep(worker, worker.base)
        elif num_tokens > worker.base + 40 and chance < 0.25:  # a draft that was no good
            self.keep(worker, num_tokens - self.rng.randrange(4, 16))
        self.read(worker, self.ticket(self.rng.randrange(1, 3)))
        self.write(worker, self.answer())
