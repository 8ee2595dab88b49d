"""Which pages of the weights a workload touches, and cold ones that stay on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from shared_models import linux, same, shared, values

from inms_lab.bench import locality as bench
from inms_lab.errors import BadInput
from inms_lab.parameters import locality
from inms_lab.parameters.kernel import ABSENT, page_states
from inms_lab.parameters.locality import cold_on_disk, on_disk, touches
from inms_lab.parameters.region import PAGE
from inms_lab.parameters.weights import module_on

AROUND = 16  # pages that the kernel maps at once where it maps neighbours: 64 KiB


def table(rows: int = 256) -> torch.nn.Module:
    """An embedding of which each row is a page."""
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, PAGE // 4)


def looked_up(*ids: int) -> Callable[[torch.nn.Module], Any]:
    return lambda module: module(torch.tensor(ids))


def untied() -> torch.nn.Module:
    return models.llama(vocab_size=4096)


def read(module: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        out: torch.Tensor = module(torch.arange(3, 40)[None]).logits
        return out


# --- what is touched --------------------------------------------------------------------------


@linux
def test_a_page_counts_when_it_was_touched_itself() -> None:
    with shared(table()) as params:
        found = touches(params, [looked_up(3, 40, 41, 200)])
        rows = found.rows("weight").tolist()
        assert {3, 40, 41, 200} <= set(rows)
        if found.exact:
            assert rows == [3, 40, 41, 200] == found.hot().tolist()


@linux
def test_without_userfaultfd_it_says_so_and_counts_the_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locality, "_SYSCALL", {})
    with shared(table()) as params:
        found = touches(params, [looked_up(3, 100)])
    assert not found.exact
    near = np.abs(found.hot()[:, None] - np.array([3, 100])).min(axis=1)
    assert {3, 100} < set(found.hot().tolist())
    assert near.max() < AROUND


@linux
def test_runs_are_counted_and_what_one_writes_is_gone_in_the_next() -> None:
    def spoil(module: torch.nn.Module) -> None:
        with torch.no_grad():
            module.weight[5] = 9.0  # type: ignore[index, operator]

    seen: list[float] = []
    works = [looked_up(5, 90), spoil, lambda module: seen.append(module.weight[5, 0].item())]
    with shared(table()) as params:
        before = values(table())
        found = touches(params, works)
        assert seen == [float(before["weight"][5, 0])]
        assert same(params.tensors(), before)
        assert found.counts[5] == found.runs == 3
        assert 5 in found.hot(3)
        assert found.hot(1).size > found.hot(3).size
        row = found.by_name().loc["weight"]
        assert row["pages"] == 256 > row["touched"] > row["always"] >= 1
        if found.exact:
            assert found.hot(3).tolist() == [5]
            assert (row["touched"], row["always"]) == (2, 1)


@linux
def test_a_text_touches_all_layers_and_few_rows_of_the_embedding_unless_it_is_tied() -> None:
    few = "model.embed_tokens.weight"
    with shared(untied()) as params:
        found = touches(params, [read])
        by_name = found.by_name()
        if found.exact:
            layers = by_name[by_name.index.str.contains("layers|lm_head")]
            assert (layers["touched"] == layers["pages"]).all()
        assert by_name.loc[few, "touched"] < by_name.loc[few, "pages"] / 4
        assert set(range(3, 40)) <= set(found.rows(few).tolist())
        first = touches(params, [lambda m: m.model.layers[1].mlp(torch.ones(1, 1, 64))])  # type: ignore[union-attr, operator, index]
        if first.exact:
            names = first.by_name().query("touched > 0").index
            assert all(name.startswith("model.layers.1.mlp.") for name in names)
            assert len(names) == 3
    with shared(models.llama(vocab_size=4096, tie_word_embeddings=True)) as params:
        tied = touches(params, [read])
        name = params.layout.same.get(few, few)
        assert tied.by_name().loc[name, "touched"] == tied.by_name().loc[name, "pages"]


# --- cold pages on disk -----------------------------------------------------------------------


@linux
def test_cold_pages_come_from_the_file_and_hot_ones_from_memory(tmp_path: Path) -> None:
    with shared(table()) as params:
        file = on_disk(params.version, params.layout, tmp_path / "weights")
        split = cold_on_disk(params.version, file, np.array([7, 8, 9, 100]))
        assert (split.hot_bytes, split.cold_bytes) == (4 * PAGE, 252 * PAGE)
        in_memory = {p.memory for p in split.version.pieces} - {split.file.memory}
        assert sum(memory.num_bytes for memory in in_memory) == 4 * PAGE
        view = split.version.view(params.num_bytes)
        assert params.source.make is not None
        module = module_on(params.source.make, view, params.layout)
        before = values(table())
        assert same(values(module), before)
        with file.path.open("r+b") as raw:  # nobody does this but a test
            raw.write(bytes(params.num_bytes))
        now = module(torch.arange(256)).detach()
        hot = torch.zeros(256, dtype=torch.bool)
        hot[[7, 8, 9, 100]] = True
        assert torch.equal(now[hot], before["weight"][hot])
        assert not now[~hot].any()


@linux
def test_a_split_model_writes_the_same_and_leaves_cold_pages_on_disk(tmp_path: Path) -> None:
    with shared(untied()) as params:
        plain, found = read(params.module()), touches(params, [read])
        file = on_disk(params.version, params.layout, tmp_path / "weights")
        split = cold_on_disk(params.version, file, found.hot())
        assert split.version.digest == params.version.digest
        assert split.hot_bytes + split.cold_bytes == params.num_bytes
        split.forget()
        view = split.version.view(params.num_bytes)
        assert params.source.make is not None
        module = module_on(params.source.make, view, params.layout)
        assert torch.equal(read(module), plain)
        states = page_states("self", view.address, params.num_bytes)
        assert states is not None
        if found.exact:
            assert int((states != ABSENT).sum()) * PAGE < split.hot_bytes + AROUND * PAGE
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        assert torch.equal(read(params.module()), plain)
        again = cold_on_disk(params.version, file, np.array([], dtype=np.int64))
        fresh = module_on(params.source.make, again.version.view(params.num_bytes), params.layout)
        assert torch.equal(read(fresh), plain)  # nor did it reach the file


# --- the measurement and bad input ------------------------------------------------------------


@linux
def test_the_measurement_compares_all_four_ways_and_changes_no_bit(tmp_path: Path) -> None:
    with shared(untied()) as params:
        found = bench.measure(params, bench.Load(messages=4), repeat=2, folder=tmp_path)
    assert found["equal"]
    assert [(row["grouped"], row["split"]) for row in found["rows"]] == [*bench.WAYS]
    assert found["rows"][0]["speed"] == 1.0
    arrival, _, ours = found["placements"]
    assert ours["bytes_across"] < arrival["bytes_across"] / 2
    assert 0.1 < found["pages"]["cold_share"] < 0.9
    assert found["claims"]["locality"]["verdict"] in ("holds", "does not hold")
    assert not [*tmp_path.iterdir()]


@linux
def test_bad_pages_and_names_are_refused(tmp_path: Path) -> None:
    with shared(table(4)) as params:
        with pytest.raises(BadInput, match="what is to be watched"):
            touches(params, [])
        found = touches(params, [looked_up(1)])
        with pytest.raises(BadInput, match="at least 1 run"):
            found.hot(0)
        with pytest.raises(BadInput, match="names are weight"):
            found.rows("nothing")
        file = on_disk(params.version, params.layout, tmp_path / "weights")
        with pytest.raises(BadInput, match="pages are 0 to 3"):
            cold_on_disk(params.version, file, np.array([4]))
        with pytest.raises(BadInput, match="repeat"):
            bench.measure(params, repeat=0)
    for wrong in ({"agents": 3}, {"tokens": 0}, {"tokens": 65}, {"regions": 0}):
        with pytest.raises(BadInput):
            bench.Load(**wrong)
