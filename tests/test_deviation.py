"""Which blocks of a fragment deviate most: found by the engine's own early layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import one_thread, shifting  # noqa: F401

from inms_lab.books.gate import OPEN
from inms_lab.config import Config
from inms_lab.errors import BadInput
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.publishing.deviation import EARLY, SCRATCH, deviations, most_deviating

SIZE = 4
PROMPT, MINE, NEWS = list(range(9)), list(range(40, 71)), list(range(80, 103))


def lab(model: Any = None) -> Lab:
    config = Config(SIZE, 8, 64, 200, 1 << 20, 1 << 20, 1 << 20)
    out = Lab(model or shifting("three"), config=config, gate=OPEN)
    out.preload(PROMPT, progress=False)
    return out


@pytest.fixture(autouse=True)
def three_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The early layers must exist."""
    import models

    monkeypatch.setitem(models.WANTED, "three", lambda **_: models.WANTED["llama"](vocab_size=160))


def test_it_is_what_a_full_prefill_shows_in_the_early_layers() -> None:
    with lab() as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish(NEWS, by=ada)
        ben.read(MINE).result()
        found = deviations(it.engine, ben.seq_id, record)
        assert SCRATCH not in it.engine.cache.store.regions
        ben.attach(record, recompute=1.0).result()  # all of it computed
        seq = it.engine.ledger.sequences
        mine, theirs = seq[ben.seq_id].segments[-1], seq[record.seq_id].segments[-1]
        assert not mine.is_fragment
        errors = []
        for layer in EARLY:
            kv = []
            for s in (mine, theirs):
                index = [s.blocks[i // SIZE] * SIZE + i % SIZE for i in range(len(NEWS))]
                kv.append([x[:, index] for x in it.engine.cache.store.layer(s.pool_id, layer)])
            rope = it.model.rotations[layer]
            kv[1][0] = rope.turn(kv[1][0], mine.first_position - theirs.first_position)
            per = [(b - a).norm(dim=-1) / a.norm(dim=-1) for a, b in zip(*kv, strict=True)]
            errors.append(torch.stack(per).mean(dim=(0, 1)))
        truth = [float(x.mean()) for x in torch.stack(errors).mean(dim=0).split(SIZE)]
        assert found == pytest.approx(truth, rel=1e-4)


def test_the_agent_names_blocks_that_attach_takes() -> None:
    with lab() as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish(NEWS, by=ada)
        ben.read(MINE).result()
        blocks = ben.deviating(record, 0.5)
        assert len(blocks) == 3
        ben.attach(record, recompute=blocks).result()
        segments = it.engine.ledger.sequences[ben.seq_id].segments[2:]
        afresh = sum(len(s.tokens) for s in segments if not s.is_fragment)
        assert afresh in (12, 11)  # the last block has three tokens


def test_the_share_is_rounded_up_and_the_largest_come_first() -> None:
    error = [0.1, 0.4, 0.2, 0.4]
    assert [most_deviating(error, s) for s in (0, 0.25, 0.3, 0.5, 1)] == [
        *([], [1], [1, 3], [1, 3], [0, 1, 2, 3])
    ]
    with pytest.raises(BadInput):
        most_deviating(error, 1.5)


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    with lab(DryModel(160, 200, 1)) as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish(NEWS, by=ada)
        with pytest.raises(BadInput, match="no weights"):
            ben.deviating(record)
    with lab() as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish(NEWS, by=ada)
        ben.read(MINE)
        with pytest.raises(BadInput, match="await what it reads"):
            ben.deviating(record)


def test_a_model_without_the_layers_that_decide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import models

    def two(**_: Any) -> Any:
        return models.WANTED["llama"](vocab_size=160, num_hidden_layers=2)

    monkeypatch.setitem(models.WANTED, "two", two)
    with lab(shifting("two")) as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish(NEWS, by=ada)
        ben.read(MINE).result()
        with pytest.raises(BadInput, match="2 in all"):
            ben.deviating(record)
