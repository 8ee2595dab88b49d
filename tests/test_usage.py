"""The bill of a lab: lines beside the books, and the peak found by replay."""

from __future__ import annotations

from inms_lab import Lab
from inms_lab.books.ledger import Ledger
from inms_lab.model.forward import DryModel
from inms_lab.notebook import usage


def small_lab(mode: str = "inms") -> Lab:
    lab = Lab(DryModel(100, 2048, 1024), block_size=16, mode=mode, debug=True)
    lab.preload(list(range(50)))
    for name in ("a", "b", "c"):
        lab.agent(name).read([7] * 30).result()
    return lab


def test_lines_formula_and_saving() -> None:
    with small_lab() as lab:
        bill = lab.bill()
        lines = {line.name: line for line in bill.lines}
        held = (4 + 3 * 2) * 16 * 1024  # ceil(50 / 16) once, ceil(30 / 16) for each agent
        assert lines["KV held now"].measured == lines["KV held now"].expected == held
        assert lines["KV without sharing"].measured == 3 * 6 * 16 * 1024
        assert bill.saved == 1 - 10 / 18
        assert bill.wasted_slots == 10 * 16 - 50 - 90
        assert lines["metadata"].measured > lab.log.num_bytes() > 0
        assert lines["process"].measured > 10_000_000
        assert "KV held now" in str(bill)
        assert "<script" not in bill._repr_html_()


def test_independent_agents_save_nothing() -> None:
    with small_lab("independent") as lab:
        assert lab.bill().saved == 0


def test_the_peak_is_the_fullest_moment_of_the_log() -> None:
    with small_lab() as lab:
        for agent in list(lab.agents.values())[1:]:
            agent.close().result()
        now = usage.held_bytes(lab.engine.ledger, 1024)
        top = usage.peak(lab.log, 1024)
        books = Ledger.replay(None, lab.log.events[: top.index], lab.log.tokens)
        assert top.num_bytes == usage.held_bytes(books, 1024) > now
        every = (lab.log.replay(i) for i in range(len(lab.log) + 1))
        assert top.num_bytes == max(usage.held_bytes(b, 1024) for b in every)
