"""Overlays: a sheet of changes over books behaves as a copy of them; the books stay as they are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import Toy, plain

from inms_lab.books.events import PoolOpened
from inms_lab.books.overlay import Layered, Touched
from inms_lab.books.pool import Pool
from inms_lab.errors import PlanInvalid

keys = st.integers(0, 7)
edits = st.lists(
    st.tuples(
        st.sampled_from(("set", "set", "delete", "pop", "get", "clear")), keys, st.integers()
    ),
    max_size=30,
)


def edit(target: Any, verb: str, key: int, value: int) -> Any:
    """One operation; what it gave or raised."""
    try:
        if verb == "set":
            target[key] = value
        elif verb == "delete":
            del target[key]
        elif verb == "pop":
            return target.pop(key, None)
        elif verb == "clear" and key == 0:
            target.clear()
        else:
            return target[key]
    except KeyError:
        return KeyError
    return None


def look(target: Any) -> Any:
    """Everything a reader can see, order included."""
    asked = [(k in target, target.get(k)) for k in range(8)]
    return list(target), list(target.items()), len(target), bool(target), asked


@given(st.dictionaries(keys, st.integers()), edits)
def test_a_layered_dict_behaves_as_a_copy_of_its_base(base: dict[int, int], changes: Any) -> None:
    kept = list(base.items())
    copy, over = OrderedDict(base), Layered(base)
    for change in changes:
        assert edit(over, *change) == edit(copy, *change)
        assert look(over) == look(copy)
    assert list(base.items()) == kept


@given(st.dictionaries(keys, st.integers()), edits, edits)
def test_an_overlay_of_an_overlay_too(base: dict[int, int], first: Any, second: Any) -> None:
    copy, lower = OrderedDict(base), Layered(base)
    for change in first:
        edit(copy, *change)
        edit(lower, *change)
    kept, upper = look(lower), Layered(lower)
    for change in second:
        assert edit(upper, *change) == edit(copy, *change)
        assert look(upper) == look(copy)
    assert look(lower) == kept


class Owner:
    """Counts how often it was overlaid."""

    def __init__(self, name: str) -> None:
        self.name, self.num_overlays = name, 0

    def overlay(self) -> Owner:
        self.num_overlays += 1
        return Owner(self.name + "'")


def test_owners_are_overlaid_once_and_only_when_asked_for() -> None:
    base = {"a": Owner("a"), "b": Owner("b")}
    over: Touched[Owner] = Touched(base)
    assert "a" in over
    assert "c" not in over
    assert base["a"].num_overlays == 0
    assert over["a"] is over["a"]
    assert over["a"].name == "a'"
    assert over.get("a") is over["a"]
    assert over.get("d") is None
    over["c"] = Owner("new")
    assert "c" in over
    assert base.keys() == {"a", "b"}
    assert Touched(over).get("c") is not None
    assert [owner.num_overlays for owner in base.values()] == [1, 0]
    with pytest.raises(KeyError):
        over["d"]


verbs = st.lists(
    st.tuples(
        st.sampled_from(("allocate", "share", "release", "forget", "publish", "evict", "withdraw")),
        st.integers(0, 5),
        st.sampled_from((b"", b"k", b"l")),
    ),
    max_size=40,
)


def act(pool: Pool, verb: str, block: int, key: bytes) -> Any:
    """One verb, if its owner would use it now; what it raised."""
    try:
        if verb == "allocate":
            pool.allocate((block,), ("x",), (key,))
        elif verb in ("share", "withdraw"):
            getattr(pool, verb)(block if verb == "withdraw" else (block,))
        elif verb in ("release", "forget"):
            pool.release((block,), forget=verb == "forget")
        elif verb == "publish":
            pool.publish((block,), (key or b"m",), (b"t",))
        elif block in pool.cached or block in pool.keys:
            pool.evict((block,))
    except PlanInvalid:
        return PlanInvalid
    return None


@given(verbs, verbs)
def test_a_pool_and_its_overlay_do_the_same(before: Any, after: Any) -> None:
    pool = Pool(PoolOpened("p", "private", "t", 4, 6))
    for action in before:
        act(pool, *action)
    kept, copy, over = pool.snapshot(), Pool.of(pool.snapshot()), pool.overlay()
    for action in after:
        assert act(over, *action) == act(copy, *action)
        assert over.snapshot() == copy.snapshot()
        assert over.next_free(9) == copy.next_free(9)
        assert (over.num_held, over.num_available()) == (copy.num_held, copy.num_available())
    assert pool.snapshot() == kept


def test_a_pool_refuses_what_no_event_may_do() -> None:
    pool = Pool(PoolOpened("p", "private", "t", 4, 3))
    pool.allocate((0,), ())
    before = pool.snapshot()
    for verb, arguments in (
        ("allocate", ((3,), ())),  # there are three
        ("allocate", ((0,), ())),
        ("share", ((1,),)),
        ("release", ((1,),)),
        ("publish", ((1,), (b"k",), (b"t",))),
    ):
        with pytest.raises(PlanInvalid):
            getattr(pool, verb)(*arguments)
    assert pool.snapshot() == before
    pool.publish((0,), (b"k",), (b"t",))
    with pytest.raises(PlanInvalid):
        pool.publish((0,), (b"l",), (b"t",))
    with pytest.raises(PlanInvalid):
        Pool(PoolOpened("q", "private", "t", 4, 1)).release((0,))


def test_books_that_were_overlaid_stay_as_they_are() -> None:
    toy = Toy()
    toy.prompt([1, 2, 3, 4, 0])
    agent = toy.agent("a")
    toy.do(agent, "write", [2] * 6, count=3)
    before, over = plain(toy.ledger), toy.ledger.overlay()
    index = len(toy.log)
    toy.enter(agent, "rollback", count=2)
    toy.do(agent, "append", [3] * 9)
    toy.enter(agent, "close")
    done = plain(toy.ledger)
    replayed = toy.log.replay(index)
    over = replayed.overlay()
    for event in toy.log.events[index:]:
        over.apply(event)
    assert plain(replayed) == before
    assert over.pools["private"].snapshot() == done["pools"]["private"]
    assert over.sequences[agent].snapshot() == done["sequences"][agent]
