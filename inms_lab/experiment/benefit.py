"""What sharing saves, counted to the byte: blocks that a lab holds against ((1 - p) n + p) L s.

n agents of L tokens have a common share p: the prompt and one record, half of it each. A lab
without weights plays it; its blocks are the real ones, for they depend on lengths alone. Beside the
smooth formula stands what it leaves out: slots of last blocks that hold no token, at the end of
every segment, and metadata (log, token table, books: Python objects, about). The end points: blocks
of one token waste nothing and take the most metadata, a block for a whole context wastes the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

import pandas as pd

from inms_lab.config import Config
from inms_lab.errors import BadInput
from inms_lab.model.forward import DryModel
from inms_lab.model.progress import bar
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.usage import deep_size, held_bytes
from inms_lab.studies import bill
from inms_lab.studies.claims import DOES_NOT_HOLD, HOLDS

SHARES = tuple(Fraction(tenths, 10) for tenths in range(9))
BLOCK_SIZES = (1, 16, 32, 64, 128, 256, 512)  # and the whole context
CLAIM, CLAIMED, COMPARED = "block-size-256", 256, (128, 256, 512)  # of claims.py
CLAIM_TOKENS = 16_000  # contexts that the claim is made for
BYTES_PER_TOKEN = 46_080  # of the default model in float32
VOCABULARY = 50_000


@dataclass(frozen=True, slots=True)
class Benefit:
    """One case, in bytes: `kv` is measured, `formula` smooth, `waste` what full blocks explain.

    `metadata` is what the lab's books take, `bookkeeping_ms` what deciding took in all.
    """

    mode: str
    num_agents: int
    tokens: int
    share: float
    block_size: int
    kv: int
    formula: int
    waste: int
    metadata: int
    bookkeeping_ms: float

    @property
    def unexplained(self) -> int:
        """Bytes that neither formula nor waste account for."""
        return self.kv - self.formula - self.waste

    @property
    def total(self) -> int:
        """KV and metadata."""
        return self.kv + self.metadata


def benefit(
    share: float | Fraction,
    block_size: int,
    *,
    mode: str = "inms",
    num_agents: int = 8,
    tokens: int = 2000,
    bytes_per_token: int = BYTES_PER_TOKEN,
) -> Benefit:
    """Play one case. Raises `BadInput` where the share is no whole number of tokens."""
    common = Fraction(str(share)) * tokens
    if not 0 <= share <= 1 or common.denominator != 1:
        raise BadInput(f"a share of {share} of {tokens} tokens is no whole number of them")
    if min(block_size, num_agents, tokens) < 1:
        raise BadInput("sizes, agents and tokens are at least 1")
    prompt, own = int(common) // 2, tokens - int(common)
    shared = [length for length in (prompt, int(common) - prompt) if length]
    lab = _lab(mode, block_size, num_agents, tokens, bytes_per_token)
    with lab:
        _play(lab, shared, own, num_agents)
        books = lab.engine.ledger
        kv = lab.look(lambda: held_bytes(books, bytes_per_token))
        metadata = lab.look(lambda: lab.log.num_bytes() + deep_size(books))
        spent = 1000 * lab.engine.bookkeeping
    lengths = [[own] if own else []] * num_agents
    counted = bill.block_bill(shared, lengths, block_size, bytes_per_token)
    alone = mode == "independent"
    smooth = (
        bill.independent_bytes(num_agents, tokens, bytes_per_token)
        if alone
        else bill.shared_bytes(num_agents, tokens, Fraction(str(share)), bytes_per_token)
    )
    empty = counted.independent_empty if alone else counted.shared_empty
    case = mode, num_agents, tokens, float(share), block_size
    return Benefit(*case, kv, round(smooth), empty * bytes_per_token, metadata, spent)


def measure(
    shares: Sequence[float | Fraction] = SHARES,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    *,
    modes: Sequence[str] = ("inms", "independent"),
    num_agents: int = 8,
    tokens: int = 2000,
    progress: bool = True,
) -> pd.DataFrame:
    """Every case, and a block for the whole context: a row each, with `unexplained` and `total`."""
    sizes = [*block_sizes, *([tokens] if tokens not in block_sizes else [])]
    cases = [(mode, share, size) for mode in modes for share in shares for size in sizes]
    rows = []
    with bar(len(cases), "benefit", unit="case", enabled=progress) as shown:
        for mode, share, size in cases:
            found = benefit(share, size, mode=mode, num_agents=num_agents, tokens=tokens)
            rows.append({**asdict(found), "unexplained": found.unexplained, "total": found.total})
            shown.update()
    return pd.DataFrame(rows)


def overhead(table: pd.DataFrame, mode: str = "inms") -> pd.Series:
    """Bytes by block size that are no token's KV: empty slots and metadata, mean over shares."""
    mine = table[table["mode"] == mode]
    means: pd.Series = (mine.waste + mine.metadata).groupby(mine.block_size).mean()
    return means


def claimed(*found: pd.DataFrame) -> dict[str, dict[str, str]]:
    """What tables of `measure` say of the claim about block sizes, as claims.py reads it: it holds
    if the size takes least beside the KV of tokens in each of them."""
    told, holds = [], True
    for table in found:
        extra = overhead(table)
        holds &= extra[list(COMPARED)].idxmin() == CLAIMED
        sizes = ", ".join(f"{extra[size] / 2**20:.1f} MiB with {size}" for size in COMPARED)
        told.append(f"{table.tokens.iloc[0]:,} tokens: {sizes}")
    agents, last = found[0].num_agents.iloc[0], found[0].share.max()
    measured = f"empty slots and metadata of {agents} agents; {'; '.join(told)}"
    verdict = HOLDS if holds else DOES_NOT_HOLD
    return {CLAIM: {"measured": measured, "interval": f"mean of p = 0 ... {last:g}",
                    "verdict": verdict}}  # fmt: skip


def _lab(mode: str, block_size: int, num_agents: int, tokens: int, bytes_per_token: int) -> Lab:
    room = (tokens + 3 * block_size) * bytes_per_token
    config = Config(
        block_size=block_size,
        context=tokens + 1,
        token_budget=2048,
        global_bytes=room,
        group_bytes=room,
        private_bytes=num_agents * room,
    )
    return Lab(DryModel(VOCABULARY, tokens + 1, bytes_per_token), mode=mode, config=config)


def _play(lab: Lab, shared: Sequence[int], own: int, num_agents: int) -> None:
    """Everybody has its whole context; nothing else is held."""
    texts = _texts([*shared, *[own] * (num_agents if own else 0)])
    if shared:
        lab.preload(next(texts), progress=False)
    team = lab.group("team")
    agents = team.agents(*(f"agent {number}" for number in range(num_agents)))
    if len(shared) > 1:
        team.publish(next(texts), by=agents[0])
        waiting = [agent.attach(team) for agent in agents]
        for pending in waiting:
            pending.result()
    waiting = [agent.read(text, role=None) for agent, text in zip(agents, texts, strict=False)]
    for pending in waiting:
        pending.result()


def _texts(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Token ids, different from text to text."""
    for number, length in enumerate(lengths):
        yield [(7919 * number + place) % VOCABULARY for place in range(length)]
