"""Global and group caches in a file: bit for bit, or refused by name and without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import one_thread, shifting  # noqa: F401
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_parcel import MINE, MORE, NEWS, PROMPT, answers, kv_of, lab, team_of

from inms_lab import Lab
from inms_lab.attention.store import KVStore
from inms_lab.books.events import Released
from inms_lab.decisions.policy import Inms
from inms_lab.errors import BadInput, LabClosed, ParcelRefused, ShelfRefused, UnknownGroup
from inms_lab.logs import audit
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.publishing import parcel, shelf
from inms_lab.publishing.importing import IMPORTED
from inms_lab.publishing.shelf import METADATA, Shelf

TOOLS, ASIDE = list(range(60, 67)), list(range(70, 79))
SECRET = [151, 143, 157, 149, 139, 158, 147]  # no other text has these


def filled(**options: Any) -> tuple[Lab, Any, Any]:
    """A lab with a prompt in two parts, two teams with records, and agents with private text."""
    it = lab(**options)
    it.preload(TOOLS, progress=False)
    team, ada, ben = team_of(it)
    other = it.group("u")
    (eve,) = other.agents("eve")
    ada.read(SECRET).result()
    team.publish(NEWS, by=ada)
    team.publish(MORE, by=ben, behind="prompt")
    team.publish(NEWS[3:], by=ben)
    other.publish(ASIDE, by=eve)
    return it, team, ben


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that most tests begin with."""
    it, _, _ = filled()
    with it:
        path = it.save_shared(tmp_path_factory.mktemp("shelf") / "all.safetensors")
        it.assert_clean()
    return path


def empty(groups: str = "tu", **options: Any) -> Lab:
    """A lab that has nothing yet but these groups."""
    it = lab(**({"prompt": None} | options))
    for name in groups:
        it.group(name)
    return it


def test_a_second_lab_computes_nothing_and_gives_the_same_bits(saved: Path) -> None:
    truth, team, ben = filled()
    with truth:
        kv = [kv_of(truth, record) for record in team.records]
        wanted = answers(truth, team, ben)
    with empty() as it:
        before = len(it.log)
        taken = it.load_shared(saved)
        assert repr(taken) == (
            "<shelf: 2 parts of a prompt, 3 records of t, 1 records of u; 71 tokens>"
        )
        assert it.engine.num_computed == 0
        team, ben = it.groups["t"], it.groups["t"].agents("ada", "ben")[1]
        assert [r.tokens for r in team.records] == [tuple(NEWS), tuple(MORE), tuple(NEWS[3:])]
        assert [r.chained for r in team.records] == [False, False, True]
        assert len(taken.teams["t"][2]) == 2, "the third has the second at a place of its own"
        assert [r.name for r in team.records] == ["t/1", "t/2", "t/3"]
        for record, one in zip(team.records, kv, strict=True):
            assert torch.equal(kv_of(it, record), one)
        for mine, theirs in zip(answers(it, team, ben), wanted, strict=True):
            assert torch.equal(mine, theirs)
        # those two computed their last tokens, and one of them a text of his own before
        assert it.engine.num_computed < len(MINE) + 3 * len(team.records) + 8
        released = [e for e in it.log.events[before:] if isinstance(e, Released)]
        assert [(e.by, e.group) for e in released] == [("operator", g) for g in "tttu"]
        reasons = {row.reason for row in it.reused().rows if row.kind in ("record", "prompt")}
        assert IMPORTED in reasons
        assert audit.impossible(it.log) is None
        assert it.log.replay().snapshot() == it.engine.ledger.snapshot()
        it.assert_clean()


def test_what_was_loaded_is_like_what_was_computed(saved: Path, tmp_path: Path) -> None:
    with empty(group_slots=128) as it:
        it.load_shared(saved)
        again = it.save_shared(tmp_path / "again")
        assert again.read_bytes() == saved.read_bytes(), "equal caches are equal files"
        team = it.groups["t"]
        ada, ben = team.agents("ada", "ben")
        new = team.publish(ASIDE, by=ada, replaces=team.records[1])
        assert (new.name, new.version) == ("t/2", 2)
        assert team.publish(SECRET, by=ben).name == "t/4"
        team.export(team.records[0], tmp_path / "one", by=ada)
        it.log.save(tmp_path / "log")
        assert Log.load(tmp_path / "log").events == it.log.events
        it.assert_clean()


def test_a_lab_that_has_the_prompt_takes_the_records(saved: Path) -> None:
    with empty(prompt=PROMPT) as it:
        it.preload(TOOLS, progress=False)
        ada = it.agent("ada", groups=["t"])
        ada.next_logits().result()
        computed = it.engine.num_computed
        it.load_shared(saved, groups=["t"])
        assert it.engine.num_computed == computed
        assert (len(it.prompts), len(it.groups["t"].records), it.groups["u"].records) == (2, 3, [])
        it.assert_clean()


def test_only_these_groups_are_saved_and_only_groups_that_are_here_take_records(
    saved: Path, tmp_path: Path
) -> None:
    it, _, _ = filled()
    with it:
        part = it.save_shared(tmp_path / "part", groups=["u"])
        assert list(shelf.load(part).teams) == ["u"]
        bare = it.save_shared(tmp_path / "bare", groups=[])
        assert list(shelf.load(bare).teams) == []
        with pytest.raises(UnknownGroup, match="no group 'x'"):
            it.save_shared(tmp_path / "no", groups=["x"])
        with pytest.raises(BadInput, match="a list of names"):
            it.save_shared(tmp_path / "no", groups="t")
    refused(saved, r"records of 'u', which this lab does not have: make it with", groups="t")
    with empty("t") as it:
        with pytest.raises(UnknownGroup):
            it.load_shared(saved, groups=["u"])
        with pytest.raises(ShelfRefused, match="no record of 't'"):
            it.load_shared(bare, groups=["t"])
        it.load_shared(saved, groups=["t"])
        assert [*it.groups] == ["t"]
        it.assert_clean()
    with empty("") as it:
        it.load_shared(saved, groups=[])
        assert len(it.prompts) == 2
        it.assert_clean()


def test_private_text_is_not_in_the_file(saved: Path, tmp_path: Path) -> None:
    """Neither its token ids, as text or as numbers, nor a row of its keys or values."""
    it, team, _ = filled()
    with it:
        path = it.save_shared(tmp_path / "a")
        data = path.read_bytes()
        assert data == saved.read_bytes()
        ada = it.agents["ada"]
        ada.attach(team).result()
        own = [s for s in it.engine.ledger.sequences[ada.seq_id].segments if s.pool_id == "private"]
        assert any(list(s.tokens[: len(SECRET)]) == SECRET for s in own)
        region = it.engine.cache.store.regions["private"]
        for segment in own:
            slots = parcel.slots(segment, 0, segment.computed)
            rows = region[:, :, :, slots].reshape(-1, region.shape[-1])
            assert len(rows) > 20
            assert not [1 for row in rows if row.numpy().tobytes() in data]
        public = it.engine.cache.store.regions["global"][:, 0, 0, :4].flatten(0, 1)
        assert all(row.numpy().tobytes() in data for row in public), "what is there is found"
    for form in (json.dumps(SECRET), json.dumps(SECRET, separators=(",", ":"))):
        assert form[1:-1].encode() not in data
    assert json.dumps(NEWS)[1:-1].encode() in data
    for width in (4, 8):
        assert b"".join(t.to_bytes(width, "little") for t in SECRET) not in data


# refused ------------------------------------------------------------------------------------------


def refused(path: Path, words: str, groups: str = "tu", **options: Any) -> None:
    """The file is refused, in these words, and has left no trace; the lab works on."""
    with empty(groups, **options) as it:
        books, tokens, events = it.engine.ledger.snapshot(), list(it.log.tokens), len(it.log)
        with pytest.raises(ShelfRefused, match=words):
            it.load_shared(path)
        assert it.engine.ledger.snapshot() == books
        assert (list(it.log.tokens), len(it.log)) == (tokens, events)
        assert not [r for team in it.groups.values() for r in team.records]
        for region in it.engine.cache.store.regions.values():
            assert not region.any(), "KV was written"
        it.preload(PROMPT, progress=False)
        it.agent("zoe").read(MINE).result()
        it.assert_clean()


def edited(path: Path, target: Path, change: Callable[[Parcels], Parcels], tile: int = 8) -> Path:
    """The same shelf with other parcels, under digests that are right again."""
    found = shelf.load(path)
    prompts, teams = change((list(found.prompts), {n: list(r) for n, r in found.teams.items()}))
    tupled = {name: tuple(records) for name, records in teams.items()}
    return shelf.save(Shelf(tile, tuple(prompts), tupled), target)


Parcels = tuple[list[Any], dict[str, list[Any]]]


def each(**changes: Any) -> Callable[[Parcels], Parcels]:
    """All parcels with these fields; fingerprints as they follow from them."""

    def one(it: Any) -> Any:
        names = {f for f in it.namespace.__slots__ if f in changes}
        space = replace(it.namespace, **{name: changes[name] for name in names})
        other = {name: value for name, value in changes.items() if name not in names}
        made = replace(it, namespace=space, **other)
        return replace(made, fingerprints=made.due())

    return lambda said: (
        [one(p) for p in said[0]],
        {n: [tuple(map(one, record)) for record in records] for n, records in said[1].items()},
    )


def relabelled(said: Parcels) -> Parcels:
    """Records of one team, given out as another's, with all keys made anew."""
    return said[0], {"t": said[1]["u"]}


def shifted(said: Parcels) -> Parcels:
    return said[0][::-1], said[1]


def tampered(said: Parcels) -> Parcels:
    ((last,),) = said[1]["u"]
    return said[0], {**said[1], "u": [(replace(last, tokens=(*last.tokens[:-1], 500)),)]}


def halved(one: Any) -> Any:
    return replace(one, keys=one.keys.half(), values=one.values.half())


CHANGES: dict[str, tuple[Callable[[Parcels], Parcels], str]] = {
    "model": (each(model="other"), "of another model: 'other', here 'llama'"),
    "tenant": (each(tenant="other"), "of another tenant: 'other', here 'default'"),
    "weights": (each(weight_version=3), "of another weight version: 3, here 0"),
    "adapter": (each(adapter="x"), "of another adapter"),
    "salt": (each(salt="x"), "of another salt"),
    "label": (each(label=("agent:ada",)), r"its label is \['agent:ada'\], a prompt here has \[\]"),
    "block size": (each(block_size=8), "its blocks have 8 tokens, here they have 4"),
    "token": (each(tokens=(500,)), "token id 500 is not in the vocabulary"),
    "another team's": (relabelled, r"its label is \['group:u'\], a record here has"),
    "order": (shifted, "do not stand behind each other"),
    "keys": (tampered, "keys do not follow"),
    "a part less": (lambda said: (said[0][:1], said[1]), "encoded behind another prompt"),
    "no prompt": (lambda said: ([], said[1]), "encoded behind another prompt"),
    "a record less": (
        lambda said: (said[0], {"t": said[1]["t"][1:]}),
        "import a team's records in their order",
    ),
    "what a record stands behind": (
        lambda said: (said[0], {"t": [*said[1]["t"][:2], said[1]["t"][2][-1:]]}),
        "what it stands behind is not all here",
    ),
    "an empty record": (lambda said: (said[0], {"t": [()]}), "a record without a parcel"),
    "another type": (
        lambda said: ([*map(halved, said[0])], {}),
        r"its KV is torch\.float16",
    ),
    "no numbers": (
        lambda said: ([replace(said[0][0], keys=said[0][0].keys * torch.nan)], {}),
        "not all of finite numbers",
    ),
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_what_does_not_belong_here_is_refused_by_name(
    change: Callable[[Parcels], Parcels], words: str, saved: Path, tmp_path: Path
) -> None:
    refused(edited(saved, tmp_path / "edited", change), words)


def test_other_sizes_other_modes_other_labs(saved: Path, tmp_path: Path) -> None:
    same: Callable[[Parcels], Parcels] = lambda said: said  # noqa: E731
    refused(edited(saved, tmp_path / "tile", same, tile=16), "tiles of 16 tokens, here they have 8")
    refused(saved, "its blocks have 4 tokens, here they have 8", size=8)
    refused(saved, r"its label is \['group:t'\], a record here has \[\]", mode="global")
    refused(saved, "group:t has . blocks to give", group_slots=20)
    refused(saved, "keeps no KV", mode="independent")
    with lab(mode="independent") as it, pytest.raises(ShelfRefused, match="keeps no KV"):
        it.save_shared(tmp_path / "no")
    with Lab(DryModel(200, 400, 64), block_size=4, context=200, pool_bytes=40_000) as it:
        with pytest.raises(ShelfRefused, match="keeps no KV"):
            it.save_shared(tmp_path / "no")
        with pytest.raises(ShelfRefused, match="keeps no KV"):
            it.load_shared(saved, groups=[])


def test_another_prompt_and_agents_that_are_there(saved: Path) -> None:
    for options in ({"prompt": [*PROMPT[:9], 77]}, {"prompt": PROMPT}):
        with empty(**options) as it:
            books = it.engine.ledger.snapshot()
            with pytest.raises(ShelfRefused, match="another prompt than the file"):
                it.load_shared(saved)
            assert it.engine.ledger.snapshot() == books
            it.assert_clean()
    with empty() as it:
        it.agent("early")
        with pytest.raises(ShelfRefused, match="before the first agent"):
            it.load_shared(saved)
        it.assert_clean()
    with pytest.raises(LabClosed):
        it.load_shared(saved)
    with pytest.raises(LabClosed):
        it.save_shared(saved)


def test_what_is_not_there_or_not_computed_is_not_saved(tmp_path: Path) -> None:
    with empty() as it:
        with pytest.raises(ShelfRefused, match="nothing to save"):
            it.save_shared(tmp_path / "no")
        it.preload(PROMPT, progress=False)
        with pytest.raises(ParcelRefused, match="no folder"):
            it.save_shared(tmp_path / "no" / "where")
        for path in ("", 5):
            with pytest.raises(BadInput, match="a file is wanted"):
                it.save_shared(path)  # type: ignore[arg-type]
    with lab(mode=Inms().without("label")) as it, pytest.raises(ShelfRefused, match="switched off"):
        it.save_shared(tmp_path / "no")
    with lab() as it:
        team, ada, _ = team_of(it)
        first = team.publish(NEWS, by=ada)
        team.publish(MORE, by=ada)
        team.publish(ASIDE, by=ada, replaces=first)
        with pytest.raises(ParcelRefused, match="behind what holds no longer"):
            it.save_shared(tmp_path / "no")
    assert not [*tmp_path.iterdir()]


def test_damage_and_other_files(saved: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "b", saved.read_bytes()
    for at in range(9, len(whole), 997):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :])
        with pytest.raises(ShelfRefused):
            shelf.load(path)
        path.write_bytes(whole[:at])
        with pytest.raises(ShelfRefused):
            shelf.load(path)
    tensors = load_file(saved)
    with safe_open(saved, "pt") as file:
        said = json.loads(file.metadata()[METADATA])

    def put(said: Any, **more: Any) -> Path:
        save_file(tensors | more, path, {METADATA: json.dumps(said)})
        return path

    assert len(shelf.load(put(said)).parcels) == 7
    for change, words in (
        ({"format": 2}, "of format 2, this lab reads 1"),
        ({"format": None}, "is no shelf: `lab.save_shared"),
        ({"tile": 16}, "is damaged: copy it again"),
        ({"teams": {}}, "is damaged"),
        ({"digest": "00"}, "is damaged"),
    ):
        with pytest.raises(ShelfRefused, match=words):
            shelf.load(put(said | change))
    with pytest.raises(ShelfRefused, match="other tensors"):
        shelf.load(put(said, extra=torch.zeros(1), more=torch.zeros(1)))
    path.write_text("a letter")
    for place in (path, tmp_path / "absent", tmp_path):
        with pytest.raises(ShelfRefused):
            shelf.load(place)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ShelfRefused, match="it is no file"):
        shelf.load(tmp_path / "pipe")


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_failure_in_the_middle_leaves_nothing_held(
    saved: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may give out while KV is written: what came before is let go again."""
    count = [0]
    write = KVStore.write

    def failing(self: KVStore, *arguments: Any) -> None:
        count[0] += 1
        if count[0] > after:
            raise MemoryError("no memory")
        write(self, *arguments)

    with empty() as it:
        with monkeypatch.context() as broken:
            broken.setattr(KVStore, "write", failing)
            with pytest.raises(MemoryError):
                it.load_shared(saved)
        assert not [s for s in it.engine.ledger.holders() if s.is_live]
        assert not sum(pool.num_held for pool in it.engine.ledger.pools.values())
        assert (it.prompts, it.groups["t"].records) == ([], [])
        it.load_shared(saved)
        assert len(it.groups["t"].records) == 3
        it.assert_clean()
