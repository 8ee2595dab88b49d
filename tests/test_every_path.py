"""Every path by which KV can reach a reader: content hit, publish, fork, attach, export, import.

On each of them the namespace is honoured (symptom 8) and the label is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import one_thread  # noqa: F401
from test_parcel import MINE, NEWS, file_with, kv_of, lab, team_of

from inms_lab.books import label
from inms_lab.books.events import Allocated, Copied, Registered, Shared
from inms_lab.decisions.outcome import Plan
from inms_lab.errors import BadInput, InmsError, NotAMember, ParcelRefused, PlanInvalid
from inms_lab.notebook.lab import Lab
from inms_lab.publishing import parcel
from inms_lab.serving.request import Request

OTHER_NAMESPACES: list[dict[str, Any]] = [
    {"tenant": "other"},
    {"salt": "pepper"},
    {"adapter": "other"},
    {"weight_version": 1},
]

# the namespace -----------------------------------------------------------------------------------


def is_done(what: Callable[[], object], error: type[InmsError], words: str) -> bool:
    """Whether it is done; else it is refused in these words."""
    try:
        what()
    except error as refusal:
        said = str(refusal)
    else:
        return True
    assert words in said
    return False


@contextmanager
def namespace(it: Lab, change: dict[str, Any]) -> Iterator[None]:
    """Whoever is registered meanwhile is of another tenant, salt, adapter or weight version."""
    old = it.engine.namespace
    it.engine.namespace = replace(old, **change)
    try:
        yield
    finally:
        it.engine.namespace = old


def holder(it: Lab, kind: str, name: str, clearance: label.Label, *texts: Request) -> Any:
    """A new holder that has read these texts."""
    seq_id = it.look(lambda: it.engine.register(kind, name, clearance))
    for text in texts:
        text.seq_id = seq_id
        it.driver.drive_sync(it.submit(text).future)
    return it.engine.ledger.sequences[seq_id]


def crossings(it: Lab) -> int:
    """Blocks that somebody mounted or copied though another namespace had computed them."""
    whose: dict[tuple[str, int], bytes] = {}
    count = 0
    for e in it.log.events:
        if isinstance(e, (Allocated, Shared, Copied)):
            mine = it.engine.ledger.sequences[e.seq_id].namespace
            if isinstance(e, Copied):
                count += whose[e.src_pool, e.src] != mine
            for block in e.blocks if isinstance(e, (Allocated, Shared)) else (e.dst,):
                if isinstance(e, Shared):
                    count += whose[e.pool_id, block] != mine
                whose[e.pool_id, block] = mine
    return count


def shares(it: Lab, seq: Any) -> int:
    """Blocks that a holder mounted."""
    shared = (e for e in it.log.events if isinstance(e, Shared) and e.seq_id == seq.seq_id)
    return sum(len(e.blocks) for e in shared)


ADA = label.private("ada") | label.group("t")


def hits_global(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    text = [Request(-1, "append", NEWS, "global", seal=True) for _ in range(2)]
    holder(it, "prompt", "prompt", label.PUBLIC, text[0])
    with namespace(it, change):
        return shares(it, holder(it, "prompt", "prompt", label.PUBLIC, text[1])) > 0


def hits_group(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    team.publish(NEWS, by=ada)
    text = Request(-1, "append", NEWS, "group", "t", seal=True)
    with namespace(it, change):
        return shares(it, holder(it, "record", "r", label.group("t"), text)) > 0


def hits_private(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    ada.read(NEWS).result()
    with namespace(it, change):
        return shares(it, holder(it, "agent", "ada", ADA, Request(-1, "append", NEWS))) > 0


def hits_fragment(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    team.publish(NEWS, by=ada)
    with namespace(it, change):
        texts = Request(-1, "append", MINE), Request(-1, "append", NEWS, seal=True)
        return shares(it, holder(it, "agent", "ada", ADA, *texts)) > 0


def publishes(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    team.publish(NEWS, by=ada, behind="prompt")
    with namespace(it, change):
        record = team.publish(NEWS, by=ada, behind="prompt")
        return shares(it, it.engine.ledger.sequences[record.seq_id]) > 0


def forks(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    ada.read(NEWS).result()
    parent, child = it.engine.ledger.sequences[ada.seq_id], len(it.engine.ledger.sequences)
    root = replace(it.engine.namespace, **change).root()
    who = (child, "agent", "ada", "default", tuple(sorted(ADA)), root, parent.seq_id)
    blocks = tuple(parent.segments[0].blocks)
    shared = Shared(child, 0, "private", blocks, parent.segments[0].computed, "fork")
    plan = Plan(len(it.log), (Registered(*who), shared))
    commit = it.engine.cache.commit
    return is_done(lambda: it.look(lambda: commit(plan)), PlanInvalid, "one principal")


def attaches(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    return _attaches(it, team, ada, change, ())


def attaches_shifted(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    return _attaches(it, team, ada, change, (Request(-1, "append", MINE),))


def _attaches(
    it: Lab, team: Any, ada: Any, change: dict[str, Any], before: tuple[Request, ...]
) -> bool:
    record = team.publish(NEWS, by=ada)
    with namespace(it, change):
        reader = holder(it, "agent", "ben", label.join(label.private("ben"), label.group("t")))
        for request in (*before, record.request(reader.seq_id)):
            request.seq_id = reader.seq_id
            it.driver.drive_sync(it.submit(request).future)
        assert list(reader.tokens())[-len(NEWS) :] == NEWS
        return shares(it, reader) > 0


def exports(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    record = team.publish(NEWS, by=ada)
    with namespace(it, change):
        export = lambda: team.export(record, path, by=ada)  # noqa: E731
        return is_done(export, ParcelRefused, "for another tenant")


def imports(it: Lab, team: Any, ada: Any, change: dict[str, Any], path: Path) -> bool:
    file_with(path, prompt=None)
    with namespace(it, change):
        take = lambda: team.import_record(path, by=ada)  # noqa: E731
        return is_done(take, ParcelRefused, "it is of another")


Path_ = Callable[[Lab, Any, Any, dict[str, Any], Path], bool]
PATHS: list[Path_] = [
    *(hits_global, hits_group, hits_private, hits_fragment, publishes, forks),
    *(attaches, attaches_shifted, exports, imports),
]


@pytest.mark.parametrize("change", OTHER_NAMESPACES, ids=str)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_08_the_namespace_is_honoured_in_every_tier_and_on_every_path(
    path: Path_, change: dict[str, Any], tmp_path: Path
) -> None:
    """Symptom 8 (sglang#37160, LMCache#4825): a tenant's salt is honoured in one tier and dropped
    in the next. Here: content hits in all three tiers, publishing, forking, attaching, exporting
    and importing. With one namespace KV passes, so the test is not vacuous; with another, never."""
    for other, passes in ((change, False), ({}, True)):
        with lab(prompt=None) as it:
            team, ada, _ = team_of(it)
            assert path(it, team, ada, other, tmp_path / "p") == passes
            assert crossings(it) == 0
            it.assert_clean()


# the label ---------------------------------------------------------------------------------------

EVE = label.private("eve") | label.group("u")


def by_content(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """The same text in the same place, private or as if it were the team's."""
    for seal in (False, True):
        eve.read(NEWS, seal=seal).result()
    ask = it.submit(Request(eve.seq_id, "append", NEWS, "group", "t", seal=True))
    with pytest.raises(PlanInvalid, match="may not hold"):
        it.driver.drive_sync(ask.future)


def by_publishing(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """The team's text published to another team is computed there."""
    with pytest.raises(NotAMember):
        team.publish(NEWS, by=eve)
    other = it.group("u").publish(NEWS, by=eve)
    assert kv_of(it, other).shape == kv_of(it, record).shape
    eve.attach(it.group("u")).result()


def by_forking(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """A child of a member's context, in another name or with another clearance."""
    child, root = len(it.engine.ledger.sequences), it.engine.namespace.root()
    for name in ("eve", "ben"):
        who = (child, "agent", name, "default", tuple(sorted(EVE)), root, ben.seq_id)
        plan = Plan(len(it.log), (Registered(*who),))
        with pytest.raises(PlanInvalid, match="one principal"):
            it.look(lambda plan=plan: it.engine.cache.commit(plan))
    assert ben.fork().result().clearance == ben.clearance


def by_attaching(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """By name, by record, by text, and past the agent's own check."""
    for what in (team, record):
        with pytest.raises(NotAMember):
            eve.attach(what)
    with pytest.raises(NotAMember):
        eve.attach(NEWS, group=team)
    for before in ([], MINE):
        if before:
            eve.read(before).result()
        with pytest.raises(PlanInvalid, match="may not hold"):
            it.driver.drive_sync(it.submit(record.request(eve.seq_id)).future)


def by_exporting(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """By the group's door, and at the KV itself."""
    with pytest.raises(NotAMember, match="eve is not in t and cannot export"):
        team.export(record, path, by=eve)
    with pytest.raises(NotAMember, match="may not read"):
        parcel.pack(it.engine, record, eve.clearance)
    with pytest.raises(BadInput, match="is no record of u"):
        it.group("u").export(record, path, by=eve)
    assert not path.exists()


def by_importing(it: Lab, team: Any, eve: Any, ben: Any, record: Any, path: Path) -> None:
    """Into the team by an outsider, and into the outsider's own team."""
    team.export(record, path, by=ben)
    with pytest.raises(NotAMember, match="cannot import"):
        team.import_record(path, by=eve)
    with pytest.raises(ParcelRefused, match="its label is"):
        it.group("u").import_record(path, by=eve)


@pytest.mark.parametrize(
    "way", [by_content, by_publishing, by_forking, by_attaching, by_exporting, by_importing]
)
def test_an_agent_outside_the_team_gets_none_of_its_blocks_on_any_path(
    way: Callable[[Lab, Any, Any, Any, Any, Path], None], tmp_path: Path
) -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        (eve,) = it.group("u").agents("eve")
        record = team.publish(NEWS, by=ada)
        ben.attach(team).result()
        way(it, team, eve, ben, record, tmp_path / "p")
        labels = {
            frozenset(it.engine.ledger.pools[s.pool_id].labels[block])
            for seq in it.engine.ledger.sequences.values()
            if seq.name.startswith(("eve", "u/"))
            for s in seq.segments
            for block in s.blocks
        }
        assert labels
        assert all(label.may_hold(one, eve.clearance) for one in labels)
        assert shares(it, it.engine.ledger.sequences[ben.seq_id]) > 3  # a member does get them
        it.assert_clean()
