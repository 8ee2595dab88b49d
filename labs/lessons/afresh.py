"""Check of lab 07: a choice of blocks to compute afresh, judged on texts that were not shown.

`choose(deviation, budget)` gets nothing else; what its blocks bring is measured with the model, as
KL to full prefill, and compared with what the first blocks bring. The view shows how the reader
would hold the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from inms_lab.books.gate import OPEN
from inms_lab.config import Config
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.notebook.pieces import piece_of

from .bench import BLOCK, NUM_BLOCKS, Bench, Reader
from .charts import Heat
from .wrong import Wrong, in_a_line, shown, whole

BUDGET = 2
BUDGETS = (BUDGET, 1, 3, 0)  # it must keep to all of them, and is measured with the first
EXACT = 1e-3  # KL that is left, by rounding, where every block is computed afresh
FIRST = tuple(range(BUDGET))
LOOK = ("bar", "map", "detail")
TEAM, READER = "team", "reader"

Picks = tuple[int, ...]


def afresh(function: object, bench: object) -> Wrong | None:
    """`function(deviation, budget)`: numbers of blocks that bring less KL than the first ones."""
    if not callable(function):
        return Wrong("a function choose(deviation, budget)", shown(function))
    if not isinstance(bench, Bench):
        return Wrong("the bench: bench", shown(bench), hint="run the cells from the top")
    if bench.closed:
        return Wrong("an open bench", "one that is closed", hint="run the cell that made it again")
    everybody = [*bench.readers, *bench.held_out()]
    chosen: dict[str, Picks] = {}
    with bench.choosing():
        for reader in everybody:
            for budget in BUDGETS:
                picks = _choice(function, bench, reader, budget)
                if isinstance(picks, Wrong):
                    return picks
                if budget == BUDGET:
                    chosen[reader.name] = picks
    return _judged(bench, {reader: chosen[reader.name] for reader in bench.held_out()})


# the form of an answer --------------------------------------------------------------------------


def _choice(
    function: Callable[..., Any], bench: Bench, reader: Reader, budget: int
) -> Picks | Wrong:
    """What it chooses for this reader, or what is the matter with that."""
    where = f"{reader.name}, with a budget of {budget}"
    try:
        answer = function(reader.deviation.copy(), budget)
    except Exception as error:
        return Wrong("block numbers", in_a_line(error), where, "call choose by hand and look")
    numbers = _numbers(answer)
    form = "a list of block numbers, as [0, 3]"
    if numbers is None:
        hint = "a list, a tuple or a set of whole numbers is wanted"
        return Wrong(form, "none yet" if answer is Ellipsis else shown(answer), where, hint)
    wrong = Wrong(form, shown(numbers), where, parts=LOOK)
    if outside := [n for n in numbers if not 0 <= n < NUM_BLOCKS]:
        what = f"numbers from 0 to {NUM_BLOCKS - 1}"
        hint = f"{outside[0]} is none of the text's blocks: deviation has a column for each block"
        return _at(replace(wrong, expected=what, hint=hint), bench, reader, (), NUM_BLOCKS - 1)
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        hint = f"block {twice} is computed once, however often it is named"
        return _at(replace(wrong, expected="each block once", hint=hint), bench, reader, (), twice)
    if len(numbers) > budget:
        what, came = f"at most {budget} blocks", f"{len(numbers)}: {shown(numbers)}"
        hint = "the more blocks, the less error: that is no art. The budget is what it may cost"
        wrong = replace(wrong, expected=what, came=came, hint=hint)
        return _at(wrong, bench, reader, tuple(sorted(numbers)), numbers[-1])
    return tuple(sorted(numbers))


def _numbers(answer: object) -> list[int] | None:
    """An answer as whole numbers; None: it is something else."""
    if isinstance(answer, (str, bytes, dict)) or not isinstance(answer, Iterable):
        return None
    found = [whole(one) for one in answer]
    return None if None in found else [one for one in found if one is not None]


# what it brings ---------------------------------------------------------------------------------


def _judged(bench: Bench, chosen: dict[Reader, Picks]) -> Wrong | None:
    """The first thing to be said of a choice for the held-out readers."""
    mine = {reader: reader.kl(picks) for reader, picks in chosen.items()}
    first = {reader: reader.kl(FIRST) for reader in chosen}
    if np.mean(list(mine.values())) < np.mean(list(first.values())):
        return _unsound(bench, next(iter(chosen)))
    what = f"a lower mean KL than with the first {BUDGET} blocks, on {len(chosen)} texts held out"
    lost = {reader: reader.kl(_best(reader)) - mine[reader] for reader in chosen}
    worst = min(lost, key=lost.__getitem__)
    left = next(block for block in _best(reader=worst) if block not in chosen[worst])
    if all(picks == FIRST for picks in chosen.values()):
        came = f"the first {BUDGET} blocks, for every text"
        hint = (
            "do all rows say the same? Layer 0 says nothing, the next ones see mostly how near "
            "the front a token is"
        )
    elif all(_is_least(reader, picks) for reader, picks in chosen.items()):
        came = "the blocks that deviate least, for every text"
        hint = "they are nearly as they should be: computing them again changes little"
    else:
        share = np.mean(list(mine.values())) / np.mean(list(first.values()))
        came = "just as much" if round(share, 1) == 1 else f"{share:.1f} times as much"
        hint = (
            f"here block {left} deviates by {_mean(worst)[left]:.0%} over the ten layers, and is "
            f"reused as it is; {shown(list(chosen[worst]))} are computed afresh"
        )
    wrong = Wrong(what, came, f"most is lost on {worst.name}", hint, parts=LOOK)
    return _at(wrong, bench, worst, chosen[worst], left)


def _mean(reader: Reader) -> np.ndarray:
    return np.asarray(reader.deviation.mean(axis=0))


def _best(reader: Reader) -> Picks:
    """The blocks that deviate most over the layers that are known, as many as may be."""
    order = np.argsort(-_mean(reader), kind="stable")
    return tuple(int(block) for block in order[:BUDGET])


def _is_least(reader: Reader, picks: Picks) -> bool:
    order = np.argsort(_mean(reader), kind="stable")
    return {*picks} == {int(block) for block in order[:BUDGET]}


def _unsound(bench: Bench, reader: Reader) -> Wrong | None:
    """With every block computed afresh nothing is left of the error; else it is not the choice that
    is wrong, but the engine."""
    left = reader.kl(range(NUM_BLOCKS))
    if left < EXACT:
        return None
    hint = "your choice is right, the engine is broken: inms_lab/interference or attention/"
    where = f"{reader.name}, every block computed afresh"
    wrong = Wrong("no error at all", f"KL {left:.2g}", where, hint, parts=LOOK)
    return _at(wrong, bench, reader, tuple(range(NUM_BLOCKS)), 0)


# where to look ----------------------------------------------------------------------------------


def _at(wrong: Wrong, bench: Bench, reader: Reader, picks: Picks, block: int) -> Wrong:
    """With a log in which the reader attaches the text that way, and the deviations drawn."""
    log, site = attached(bench, reader, picks, block)
    number = len(log.decisions) - 1
    picture = Heat(
        reader.deviation.tolist(),
        f"deviation of {reader.name}; marked: computed afresh",
        "block",
        "layer",
        marked=picks,
    )
    return replace(wrong, log=log, block=site, decision=number, picture=picture)


def attached(bench: Bench, reader: Reader, picks: Picks, block: int) -> tuple[Log, tuple[str, int]]:
    """The log of a lab without weights in which the reader attaches its record, these blocks
    computed afresh; and where block number `block` of the record lies in the pool."""
    sample, runner = reader.sample, bench.runner
    size = 32 * BLOCK * runner.new_store().bytes_per_token
    config = Config(BLOCK, 0, 512, 1024, size, size, size)
    model = DryModel(runner.vocab_size, 1024, runner.new_store().bytes_per_token)
    with Lab(model, gate=OPEN, config=config) as lab:
        lab.log.piece = piece_of(runner.tokenizer)
        lab.preload(list(sample.public), progress=False)
        team = lab.group(TEAM)
        author, other = team.agents("author", READER)
        record = team.publish(sample.fragment, by=author, behind="prompt")
        other.read(list(sample.own)).result()
        other.attach(record, recompute=list(picks)).result()
        holder = lab.engine.ledger.sequences[record.seq_id]
        site = (holder.segments[-1].pool_id, holder.segments[-1].blocks[block])
        return lab.log.copy(), site
