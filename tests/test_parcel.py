"""Records that leave a lab and come back: bit for bit the same KV, or a refusal that says why."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import one_thread, shifting  # noqa: F401
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from inms_lab.books.events import Released, Stepped
from inms_lab.books.gate import OPEN
from inms_lab.config import Config
from inms_lab.decisions.policy import Inms
from inms_lab.errors import (
    AgentClosed,
    BadInput,
    ParcelRefused,
    RecordSuperseded,
)
from inms_lab.hindsight.explain import explain_all
from inms_lab.logs import audit
from inms_lab.logs.log import Log
from inms_lab.logs.redact import redacted
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.publishing import parcel
from inms_lab.publishing.importing import IMPORTED

TILE = 8
PROMPT, MINE = list(range(10)), list(range(20, 31))
NEWS, MORE = list(range(100, 111)), list(range(40, 53))
OTHER_NAMESPACES: list[dict[str, Any]] = [
    {"tenant": "other"},
    {"salt": "pepper"},
    {"adapter": "other"},
    {"weight_version": 1},
]


def lab(size: int = 4, **options: Any) -> Lab:
    """A tiny real model, every fragment passes; tiles of eight tokens whatever the block size."""
    model = options.pop("model", None) or shifting()
    token = model.new_store().bytes_per_token
    slots = (64, options.pop("group_slots", 64), 256)
    config = Config(size, TILE, 64, 200, *(n * token for n in slots), debug=True)
    prompt = options.pop("prompt", PROMPT)
    out = Lab(model, config=config, **({"gate": OPEN} | options))
    if prompt:
        out.preload(prompt, progress=False)
    return out


def team_of(lab: Lab, name: str = "t") -> tuple[Any, Any, Any]:
    team = lab.group(name)
    return (team, *team.agents("ada", "ben"))


def file_with(path: Path, text: list[int] = NEWS, **options: Any) -> Path:
    """A parcel of a record that was published alone."""
    with lab(**options) as it:
        team, ada, ben = team_of(it)
        return Path(team.export(team.publish(text, by=ada), path, by=ben))


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parcel that most tests begin with."""
    return file_with(tmp_path_factory.mktemp("parcels") / "news.safetensors")


def kv_of(it: Lab, record: Any) -> torch.Tensor:
    """KV [2, layers, K, T, D] of a record's own text, by its block table."""
    own = it.engine.ledger.sequences[record.seq_id].segments[-1]
    size = own.block_size
    slots = [own.blocks[at // size] * size + at % size for at in range(len(own.tokens))]
    return it.engine.cache.store.regions[own.pool_id][:, :, :, slots].clone()


def answers(it: Lab, team: Any, agent: Any) -> tuple[torch.Tensor, ...]:
    """Logits of one who has the team's records in their place, and of one who has them at a shift
    of eleven tokens."""
    (other,) = team.agents("cai")
    other.read(MINE).result()
    for one in (agent, other):
        one.attach(team).result()
    return tuple(one.next_logits().result() for one in (agent, other))


# the round trip ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("behind", ["prompt", "records"])
def test_what_comes_back_is_bit_for_bit_what_would_be_computed_here(
    size: int, behind: str, tmp_path: Path
) -> None:
    with lab(4) as there:
        team, ada, ben = team_of(there)
        records = [team.publish(text, by=ada, behind=behind) for text in (NEWS, MORE)]
        paths = [team.export(r, tmp_path / str(n), by=ben) for n, r in enumerate(records)]
        there.assert_clean()
    with lab(size) as truth:
        team, ada, ben = team_of(truth)
        records = [team.publish(text, by=ada, behind=behind) for text in (NEWS, MORE)]
        wanted = [kv_of(truth, record) for record in records]
        logits = answers(truth, team, ben)
    with lab(size) as it:
        team, ada, ben = team_of(it)
        ada.next_logits().result()
        computed = it.engine.num_computed
        records = [team.import_record(path, by=ada) for path in paths]
        assert it.engine.num_computed == computed
        assert [r.tokens for r in team.records] == [tuple(NEWS), tuple(MORE)]
        for record, kv in zip(records, wanted, strict=True):
            assert torch.equal(kv_of(it, record), kv)
        for mine, theirs in zip(answers(it, team, ben), logits, strict=True):
            assert torch.equal(mine, theirs)
        segments = it.engine.ledger.sequences[ben.seq_id].segments
        assert any(s.is_fragment for s in segments) == (behind == "prompt")
        it.assert_clean()


def test_an_import_is_in_the_log_with_who_answers_for_it_and_why_nothing_was_computed(
    sent: Path, tmp_path: Path
) -> None:
    with lab() as it:
        team, _, ben = team_of(it)
        ben.next_logits().result()
        before, computed = len(it.log), it.engine.num_computed
        record = team.import_record(sent, by=ben)
        assert (record.name, record.by, record.version) == ("t/1", "ben", 1)
        events = it.log.events[before:]
        (released,) = [e for e in events if isinstance(e, Released)]
        assert (released.by, released.group) == ("ben", "t")
        assert tuple(it.log.tokens[released.offset :][: released.length]) == tuple(NEWS)
        assert [type(e) for e in events[-4:]].count(Stepped) == 1
        assert it.engine.num_computed == computed
        rows = [r for r in it.reused().rows if r.reason == IMPORTED]
        assert [(r.kind, r.num_tokens, r.num_blocks) for r in rows] == [("record", len(NEWS), 3)]
        assert it.engine.ledger.records["t"] == (record.seq_id,)
        assert it.log.replay().snapshot() == it.engine.ledger.snapshot()
        assert audit.impossible(it.log) is None
        told = [p for e in explain_all(it.log) for p in e.parts if p.reason == IMPORTED]
        assert [p.outcome for p in told] == ["computed"]
        masked = redacted(it.log)
        assert masked.replay().snapshot()["num_steps"] == it.engine.ledger.num_steps
        it.log.save(tmp_path / "a.inmslog")
        assert Log.load(tmp_path / "a.inmslog").events == it.log.events
        ben.attach(team).result()
        it.assert_clean()


def test_an_imported_record_is_a_record_like_others(sent: Path, tmp_path: Path) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        record = team.import_record(sent, by=ada)
        ben.attach(record).result()
        again = team.export(record, tmp_path / "again", by=ben)
        assert again.read_bytes() == sent.read_bytes()
        new = team.publish(MORE, by=ada, replaces=record)
        assert (new.name, new.version, ben.outdated) == ("t/1", 2, [record])
        it.assert_clean()


def test_blocks_that_are_there_are_mounted_and_not_written_again(sent: Path) -> None:
    with lab() as it:
        team, ada, _ = team_of(it)
        first = team.publish(NEWS, by=ada, behind="prompt")
        pool = it.engine.ledger.pools["group:t"]
        held, kv = pool.num_held, kv_of(it, first)
        second = team.import_record(sent, by=ada)
        assert pool.num_held == held
        assert torch.equal(kv_of(it, second), kv)
        it.assert_clean()


def test_the_same_text_at_another_place_does_not_stand_in_for_it(sent: Path) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(MORE, by=ada)
        elsewhere = team.publish(NEWS, by=ada)
        record = team.import_record(sent, by=ben)
        own = it.engine.ledger.sequences[record.seq_id].segments[-1]
        assert not own.is_fragment
        found = parcel.load(sent)
        assert torch.equal(kv_of(it, record), torch.stack((found.keys, found.values)))
        assert not torch.equal(kv_of(it, record), kv_of(it, elsewhere))
        it.assert_clean()


def test_a_program_imports_between_two_steps(sent: Path) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)

        async def program(me: Any) -> int:
            await me.read(MINE)
            team.import_record(sent, by=me)
            return int(await me.attach(team))

        it.start({ada: program, ben: program})
        results = it.run_to()
        assert len(team.records) == 2
        assert {results["ada"], results["ben"]} == {
            len(PROMPT + MINE + NEWS),
            len(PROMPT + MINE + NEWS + NEWS),
        }
        it.assert_clean()


def test_in_mode_global_a_parcel_goes_to_a_lab_of_that_mode_only(tmp_path: Path) -> None:
    path = file_with(tmp_path / "p", mode="global")
    with lab(mode="global") as it:
        team, ada, ben = team_of(it)
        record = team.import_record(path, by=ada)
        ben.attach(record).result()
        assert it.reused().tokens("shared") >= len(NEWS)
        it.assert_clean()
    refused(path, r"its label is \[\], a record here has \['group:t'\]")


# what is refused on the way in -------------------------------------------------------------------


def refused(path: Path, words: str, **options: Any) -> None:
    """The import is refused, in these words, and has left no trace."""
    with lab(**options) as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        books, tokens = it.engine.ledger.snapshot(), list(it.log.tokens)
        with pytest.raises(ParcelRefused, match=words):
            team.import_record(path, by=ada)
        assert it.engine.ledger.snapshot() == books
        assert list(it.log.tokens) == tokens
        assert team.records == []
        team.publish(NEWS[:5], by=ada)
        ben.attach(team).result()
        it.assert_clean()


def edited(path: Path, target: Path, **changes: Any) -> Path:
    """The same parcel with other contents, under a digest that is right again."""
    found = parcel.load(path)
    names = {f for f in found.namespace.__slots__ if f in changes}
    space = replace(found.namespace, **{name: changes.pop(name) for name in names})
    return parcel.save(replace(found, namespace=space, **changes), target)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, "of another model: 'other', here 'llama'"),
        ({"tenant": "other"}, "of another tenant: 'other', here 'default'"),
        ({"adapter": "x"}, "of another adapter"),
        ({"weight_version": 3}, "of another weight version: 3, here 0"),
        ({"salt": "x"}, "of another salt"),
        ({"position_scheme": "alibi"}, "of another position scheme"),
        ({"tokens": tuple(MORE[:11])}, "keys do not follow"),
        ({"tokens": tuple(NEWS[:4])}, "keys do not follow"),
        ({"root": b"\1" * 16}, "keys do not follow"),
        ({"encoded": 11}, "keys do not follow"),
        ({"block_size": 2}, "keys do not follow"),
        ({"label": ("agent:ada", "group:t")}, "keys do not follow"),
        ({"fingerprints": (b"\1" * 16,) * 3}, "keys do not follow"),
        ({"tokens": ()}, "a record has tokens"),
        ({"tokens": (1 << 40,)}, "no parcel, or damaged"),
        ({"block_size": 0}, "a block has slots"),
    ],
    ids=str,
)
def test_what_the_parcel_says_of_itself_must_be_so_and_must_be_what_holds_here(
    change: dict[str, Any], words: str, sent: Path, tmp_path: Path
) -> None:
    refused(edited(sent, tmp_path / "p", **change), words)


def consistent(path: Path, target: Path, **changes: Any) -> Path:
    """An edited parcel whose keys do follow from what it says."""
    found = replace(parcel.load(path), **changes)
    return parcel.save(replace(found, fingerprints=found.due()), target)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": ("group:u",)}, r"its label is \['group:u'\], a record here has \['group:t'\]"),
        ({"label": ("agent:ada", "group:t")}, "its label is"),
        ({"label": ()}, r"its label is \[\]"),
        ({"root": b"\1" * 16}, "encoded behind another prompt"),
        ({"encoded": 9}, "encoded behind another prompt"),
        ({"tokens": (*NEWS[:10], 500)}, "token id 500 is not in the vocabulary"),
        ({"tokens": tuple(NEWS[:8])}, "its KV is"),
    ],
    ids=str,
)
def test_a_parcel_that_is_consistent_must_still_belong_here(
    change: dict[str, Any], words: str, sent: Path, tmp_path: Path
) -> None:
    refused(consistent(sent, tmp_path / "p", **change), words)


def test_another_prompt_none_or_records_that_are_not_here(sent: Path, tmp_path: Path) -> None:
    refused(sent, "encoded behind another prompt", prompt=[*PROMPT[:9], 77])
    refused(sent, "encoded behind another prompt", prompt=None)
    bare = file_with(tmp_path / "bare", prompt=None)
    refused(bare, "encoded behind another prompt")
    with lab(8, prompt=None) as it:
        team, ada, _ = team_of(it)
        team.import_record(bare, by=ada)
    with lab() as there:
        team, ada, _ = team_of(there)
        team.publish(NEWS, by=ada)
        second = team.export(team.publish(MORE, by=ada), tmp_path / "second", by=ada)
    refused(second, "import a team's records in their order")


def test_kv_of_another_shape_or_type(sent: Path, tmp_path: Path) -> None:
    found = parcel.load(sent)
    half = edited(sent, tmp_path / "h", keys=found.keys.half(), values=found.values.half())
    refused(half, "its KV is torch.float16")
    for changes in ({"keys": found.keys[:, :1]}, {"values": found.values[:1]}):
        whole = {name: half.contiguous() for name, half in changes.items()}
        refused(edited(sent, tmp_path / "p", **whole), "its KV is torch.float32")


def test_a_pool_that_is_too_small_or_full(sent: Path) -> None:
    refused(sent, "give the lab a larger pool", group_slots=8)
    with lab(group_slots=20) as it:
        team, ada, _ = team_of(it)
        team.publish(MORE, by=ada)
        books, count = it.engine.ledger.snapshot(), len(it.log)
        with pytest.raises(ParcelRefused, match="1 blocks to give, the record needs 3"):
            team.import_record(sent, by=ada)
        assert (it.engine.ledger.snapshot(), len(it.log)) == (books, count)
        it.assert_clean()


def test_a_context_that_it_would_not_fit(sent: Path) -> None:
    model = shifting()
    token = model.new_store().bytes_per_token
    config = Config(4, TILE, 64, 15, *(64 * token for _ in range(3)))
    with Lab(model, config=config, gate=OPEN) as it:
        it.preload(PROMPT, progress=False)
        team, ada, _ = team_of(it)
        with pytest.raises(ParcelRefused, match="21 tokens, the limit is 15"):
            team.import_record(sent, by=ada)


def test_labs_that_keep_no_kv_of_records(sent: Path) -> None:
    refused(sent, "keeps no KV of records", mode="independent")
    model = DryModel(160, 200, 8)
    model.digest = shifting().digest
    refused(sent, "keeps no KV of records", model=model)


def damaged(data: bytes, how: str) -> bytes:
    header = 8 + int.from_bytes(data[:8], "little")
    if how == "a bit of a key":
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
    if how == "the shape":
        return data[:header].replace(b"[2,2,11,16]", b"[2,2,16,11]") + data[header:]
    if how == "a token":
        return data[:header].replace(b"100, 101", b"101, 100") + data[header:]
    if how == "the label":
        return data.replace(b"group:t", b"group:u")
    if how == "cut short":
        return data[: len(data) // 2]
    if how == "a name":
        return data.replace(b"namespace", b"namespase")
    if how == "a number":
        return data.replace(b'encoded\\": 10', b'encoded\\": 1x')
    return b"something else" if how == "another file" else b""


@pytest.mark.parametrize(
    "how",
    [
        *("a bit of a key", "the shape", "a token", "the label", "cut short"),
        *("a name", "a number", "another file", "empty"),
    ],
)
def test_a_damaged_file(how: str, sent: Path, tmp_path: Path) -> None:
    data = sent.read_bytes()
    (path := tmp_path / "p").write_bytes(damaged(data, how))
    assert path.read_bytes() != data
    refused(path, "damaged|cannot be read|no parcel")


def test_another_format_another_file_and_no_file(sent: Path, tmp_path: Path) -> None:
    tensors = load_file(sent)
    save_file(tensors, tmp_path / "later", {parcel.METADATA: '{"format": 2}'})
    refused(tmp_path / "later", "of format 2, this lab reads 1")
    save_file(tensors, tmp_path / "plain")
    refused(tmp_path / "plain", "is no parcel: `team.export")
    save_file(tensors, tmp_path / "list", {parcel.METADATA: "[]"})
    refused(tmp_path / "list", "no parcel, or damaged")
    refused(tmp_path / "nothing", "cannot be read")
    refused(tmp_path, "cannot be read|no parcel")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "it is no file")


def test_metadata_and_tensors_that_make_no_sense(sent: Path, tmp_path: Path) -> None:
    tensors = load_file(sent)
    save_file(tensors, tmp_path / "deep", {parcel.METADATA: "[" * 100_000})
    refused(tmp_path / "deep", "no parcel, or damaged")
    edited(sent, tmp_path / "label", label=("\ud800",))
    refused(tmp_path / "label", "damaged")
    with safe_open(sent, "pt") as file:
        told = file.metadata()
    save_file({name: torch.zeros(()) for name in tensors}, tmp_path / "flat", told)
    refused(tmp_path / "flat", "damaged")


def test_kv_that_is_no_number_is_refused_though_all_else_is_in_order(
    sent: Path, tmp_path: Path
) -> None:
    whole = parcel.load(sent)
    whole.values[0, 0, 0, 0] = float("nan")
    refused(parcel.save(whole, tmp_path / "nan"), "finite")


@pytest.mark.parametrize("wrong", [None, 5, b"x", "", ".", "a\0b"])
def test_what_names_no_file(wrong: Any) -> None:
    with lab() as it:
        team, ada, _ = team_of(it)
        record = team.publish(NEWS, by=ada)
        with pytest.raises(BadInput, match="a file is wanted"):
            team.export(record, wrong, by=ada)
        with pytest.raises(BadInput, match="a file is wanted"):
            team.import_record(wrong, by=ada)


def test_a_place_where_no_file_can_be_written(tmp_path: Path) -> None:
    with lab() as it:
        team, ada, _ = team_of(it)
        record = team.publish(NEWS, by=ada)
        for path, words in ((tmp_path / "no" / "x", "make it first"), (tmp_path, "cannot be")):
            with pytest.raises(ParcelRefused, match=words):
                team.export(record, path, by=ada)
        with pytest.raises(ParcelRefused, match="cannot be written"):
            team.export(record, tmp_path / ("x" * 300), by=ada)
        assert not list(tmp_path.iterdir())


def test_many_threads_export_to_one_file(tmp_path: Path) -> None:
    with lab() as it:
        team, ada, _ = team_of(it)
        record = team.publish(NEWS, by=ada)
        with ThreadPoolExecutor(4) as pool:
            paths = pool.map(lambda _: team.export(record, tmp_path / "x", by=ada), range(40))
            assert set(paths) == {tmp_path / "x"}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    parcel.load(tmp_path / "x")


def test_a_write_that_fails_is_taken_back(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        ben.next_logits().result()
        held = {p: pool.num_held for p, pool in it.engine.ledger.pools.items()}

        def full(*_: object) -> None:
            raise MemoryError("no more")

        with monkeypatch.context() as patch:
            patch.setattr(it.engine.cache.store, "write", full)
            with pytest.raises(MemoryError):
                team.import_record(sent, by=ada)
        assert {p: pool.num_held for p, pool in it.engine.ledger.pools.items()} == held
        assert not any(pool.pending for pool in it.engine.ledger.pools.values())
        assert team.records == []
        team.import_record(sent, by=ada)
        ben.attach(team).result()
        it.assert_clean()


# what is refused on the way out ------------------------------------------------------------------


def not_exported(it: Lab, team: Any, record: Any, by: Any, path: Path, words: str) -> None:
    count = len(it.log)
    with pytest.raises(ParcelRefused, match=words):
        team.export(record, path, by=by)
    assert not path.exists()
    assert len(it.log) == count


def test_a_record_that_does_not_hold_or_stands_behind_one(tmp_path: Path) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        old, behind = team.publish(NEWS, by=ada), team.publish(MORE, by=ada)
        team.publish(MINE, by=ada, replaces=old)
        with pytest.raises(RecordSuperseded, match="use version 2"):
            team.export(old, tmp_path / "p", by=ada)
        with pytest.raises(BadInput, match="is no record"):
            team.export(NEWS, tmp_path / "p", by=ada)
        not_exported(it, team, behind, ada, tmp_path / "p", "what holds no longer")
        ben.attach(team).result()  # encodes it again
        team.export(team.records[1], tmp_path / "p", by=ada)
        it.assert_clean()


def test_a_record_without_kv_of_its_own(tmp_path: Path) -> None:
    with lab(model=DryModel(4096, 200, 8)) as it:
        team, ada, _ = team_of(it)
        not_exported(it, team, team.publish(NEWS, by=ada), ada, tmp_path / "p", "no KV of its own")
    with lab(mode="independent") as it:
        team, ada, _ = team_of(it)
        not_exported(it, team, team.publish(NEWS, by=ada), ada, tmp_path / "p", "no KV of its own")
    with lab() as it:
        team, ada, _ = team_of(it)

        async def program(me: Any) -> None:  # it is not computed before the next step
            record = team.publish(NEWS, by=me)
            not_exported(it, team, record, me, tmp_path / "p", "no KV of its own in this lab")

        it.start({ada: program})
        it.run_to()
        it.assert_clean()


def test_kv_that_no_other_lab_would_compute(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with lab(mode=Inms().without("tokens")) as it:
        team, ada, _ = team_of(it)
        not_exported(it, team, team.publish(NEWS, by=ada), ada, path, "checks are switched off")
    with lab(mode="global") as it:  # there a record may be its author's own KV
        team, ada, _ = team_of(it)
        ada.read(MINE).result()
        ada.read(NEWS, seal=True).result()
        record = team.publish(NEWS, by=ada)
        assert it.engine.ledger.sequences[record.seq_id].segments[-1].is_fragment
        not_exported(it, team, record, ada, path, "encoded at another place")
        it.assert_clean()


def test_who_is_no_live_agent_of_this_lab(sent: Path, tmp_path: Path) -> None:
    with lab() as it, lab() as other:
        team, ada, ben = team_of(it)
        _, stranger, _ = team_of(other)
        record = team.publish(NEWS, by=ada)
        ben.close().result()
        for by, error in ((ben, AgentClosed), (stranger, BadInput), ("ada", BadInput)):
            with pytest.raises(error):
                team.export(record, tmp_path / "p", by=by)
            with pytest.raises(error):
                team.import_record(sent, by=by)
