"""Explanations against independent computations on random runs, and a few stories as literals."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from test_ledger import Player
from toy import Toy

from inms_lab.books import checks, fingerprint
from inms_lab.books.checks import CHECKS, CheckResult, Dropped
from inms_lab.books.events import EVENT_TYPES
from inms_lab.books.gate import OPEN
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.lookup import find
from inms_lab.decisions.outcome import Plan
from inms_lab.decisions.plan import plan_extend
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain import (
    Explainer,
    Explanation,
    Part,
    as_json,
    explain,
    explain_all,
    refusals,
    seconds_per_token,
    source_of,
)
from inms_lab.hindsight.shadow import Shadow, sift
from inms_lab.logs.log import Log

SYSTEM = [1, 2, 3, 4, 0, 1]
HELLO = [4, 4, 3, 3, 2, 2, 1, 1, 0]
SEEDS = range(5)


@cache
def played(mode: str, seed: int) -> Log:
    player = Player(mode, seed, gate=OPEN if seed % 2 else None)  # every second with fragments
    for _ in player.play(250):
        pass
    return player.toy.log


def runs() -> Callable[[Any], Any]:
    cases = [(mode, seed) for mode in MODES for seed in SEEDS]
    return pytest.mark.parametrize(("mode", "seed"), cases)


def verdicts(part: Part) -> list[str]:
    return [check.verdict for check in part.checks]


# --- random runs -----------------------------------------------------------------------------


@runs()
def test_planning_again_gives_the_events_of_the_log(mode: str, seed: int) -> None:
    log = played(mode, seed)
    assert log.decisions
    for made, said in zip(log.decisions, explain_all(log), strict=True):
        books = log.replay(made.at)
        outcome = plan_extend(books, made.at, made.seq_id, made.budget)
        events = outcome.events if isinstance(outcome, Plan) else ()
        assert said.events == events == tuple(log.events[made.at : made.stop])
        assert said.decided == made
        seq = books.sequences[made.seq_id]
        assert (said.name, said.kind, said.step) == (seq.name, seq.kind, books.num_steps + 1)
        if isinstance(outcome, Plan):
            assert [p.outcome for p in said.parts] == [d.outcome for d in outcome.decisions]
        else:
            assert [p.outcome for p in said.parts] == [made.outcome]


@runs()
def test_verdicts_agree_with_the_outcome(mode: str, seed: int) -> None:
    seen = Counter[str]()
    for said in explain_all(played(mode, seed)):
        for part in said.parts:
            seen[part.outcome] += 1
            checks_of(part, said)
    assert seen["computed"]
    assert seen["shared"] or mode == "independent"


def checks_of(part: Part, said: Explanation) -> None:
    said_of = verdicts(part)
    assert [c.number for c in part.checks] == [1, 2, 3, 4, 5, 6, 7]
    assert [c.key for c in part.checks] == [c.key for c in CHECKS]
    exact = said_of == [*["yes"] * 5, "not needed", "yes"]
    assert exact == (part.outcome == "shared")
    assert (said_of == ["yes"] * 7) == (part.outcome == "shared at a shift")
    if part.outcome == "deferred":
        assert said_of == ["yes", "no", *["not asked"] * 5]
    elif part.outcome == "no room":
        assert said_of[6] == "no"
        assert "no" in said_of[:5]
    elif part.outcome == "refused":
        assert said_of[3] == "no"
        assert said_of[6] == "not asked"
    elif part.outcome == "computed":
        fails = said_of.index("no")
        assert said_of == ["yes"] * fails + ["no"] + ["not asked"] * (5 - fails) + ["yes"]
        assert part.checks[6].value == part.num_blocks == len(part.blocks)
    elif part.outcome == "copied":
        assert said_of == [*["not needed"] * 3, "yes", *["not needed"] * 2, "yes"]
    sign = {"shared": 1, "shared at a shift": 1, "computed": -1, "copied": -1}.get(part.outcome, 0)
    assert part.num_bytes == sign * part.num_blocks * 4
    assert part.num_prefill == (0 if part.outcome == "copied" else sign * part.num_tokens)
    assert bool(said.events) == (said.decided.outcome == "planned")


@pytest.mark.parametrize("mode", MODES)
def test_every_block_with_the_same_tokens_is_accounted_for(mode: str) -> None:
    seen = Counter[int]()
    for log in (played(mode, seed) for seed in SEEDS):
        explainer = Explainer(log)
        for made in log.decisions:
            said = explainer.next(made)
            for part in (p for p in said.parts if p.outcome != "copied"):
                for dropped in accounted_for(explainer, part, said):
                    seen[dropped.check] += 1
                    really_differs(explainer.books, part, said, dropped)
    assert seen[2]
    assert mode == "independent" or seen[5]
    assert mode != "inms" or seen[4]


def accounted_for(explainer: Explainer, part: Part, said: Explanation) -> list[Dropped]:
    """Every published block with these tokens is left over or dropped, once; serving's is left."""
    books, first = explainer.books, part.first_block
    seq = books.sequences[said.decided.seq_id]
    segment = seq.segments[part.segment]
    sifted = sift(books, explainer.shadow, seq, part.segment, first)
    found = {
        (pool_id, block)
        for pool_id, pool in books.pools.items()
        for block, known in pool.tokens.items()
        if known == segment.block_tokens(first)
    }
    assert found <= set(sifted.left[0])
    gone = [(d.pool_id, d.block) for d in sifted.dropped]
    assert sorted([*gone, *sifted.left[5]]) == sorted(sifted.left[0])
    best = find(books.pools[segment.pool_id], segment, first, seq)
    assert (best is None) == (not sifted.left[5])
    assert best is None or (segment.pool_id, best) in sifted.left[5]
    return sifted.dropped


def really_differs(books: Ledger, part: Part, said: Explanation, dropped: Dropped) -> None:
    """The property that the check names is another one, by the tables and tokens alone."""
    seq, pool = books.sequences[said.decided.seq_id], books.pools[dropped.pool_id]
    segment, label = seq.segments[part.segment], set(pool.labels[dropped.block])
    if dropped.check == 2:
        size = segment.block_size
        short = (part.first_block + 1) * size > len(segment.tokens) and segment.open
        assert short or not segment.indexed or dropped.block not in pool.keys
    elif dropped.check == 4:
        assert dropped.refused == (not label <= set(said.clearance))
        elsewhere = dropped.pool_id != segment.pool_id or label != set(segment.label)
        assert dropped.refused or elsewhere
    else:
        assert dropped.check == 5
        assert label <= set(said.clearance)
        before = list(seq.tokens())[: part.first_position]
        for text, at in contexts(books, dropped):
            if dropped.why.startswith("the same text"):
                assert text == before
            else:
                assert text != before
                assert ("shift" in dropped.why) == (at != part.first_position)


def contexts(books: Ledger, dropped: Dropped) -> list[tuple[list[int], int]]:
    """What stands before a block in the tables that hold it, and where it stands."""
    return [
        (list(seq.tokens())[:at], at)
        for seq in books.holders()
        for s in seq.segments
        if s.pool_id == dropped.pool_id and not s.is_fragment
        for index, block in enumerate(s.blocks)
        if block == dropped.block
        for at in [s.first_position + index * s.block_size]
    ]


@runs()
def test_the_shadow_holds_what_the_tables_hold(mode: str, seed: int) -> None:
    log = played(mode, seed)
    explainer = Explainer(log)
    for made in log.decisions[::3]:
        explainer.move(made.at)
        books, shadow = explainer.books, explainer.shadow
        lying = {(p, b) for p, pool in books.pools.items() for b in (*pool.refs, *pool.cached)}
        assert set(shadow.tokens) <= lying
        assert set(shadow.tokens) == set(shadow.facts)
        assert shadow.tokens == {s: t for t, sites in shadow.sites.items() for s in sites}
        for pool_id, pool in books.pools.items():
            for block, tokens in pool.tokens.items():
                assert shadow.tokens[pool_id, block] == tokens
        for seq in books.holders():
            text = seq.tokens()
            for s in seq.segments if not any(s.is_fragment for s in seq.segments) else ():
                for start in range(0, s.computed, s.block_size):
                    site = (s.pool_id, s.blocks[start // s.block_size])
                    written = s.tokens[start : min(start + s.block_size, s.computed)].tobytes()
                    assert shadow.tokens[site].startswith(written)
                    facts, at = shadow.facts[site], s.first_position + start
                    assert (facts.position, facts.namespace) == (at, seq.namespace)
                    before = fingerprint.blake2b(text[:at], digest_size=16).digest()
                    assert facts.before == before
        again = Shadow(books)
        assert set(again.tokens) == set(shadow.tokens)
        for site, known in again.facts.items():
            assert known.position in (-1, shadow.facts[site].position)


def test_the_shadow_forgets_what_was_cut_off_and_what_is_free_again() -> None:
    toy = Toy()
    agent = toy.agent("a")

    def lying() -> list[list[int]]:
        explainer = Explainer(toy.log)
        explainer.move(len(toy.log))
        return [list(memoryview(t).cast("i")) for t in explainer.shadow.tokens.values()]

    toy.do(agent, "append", HELLO[:7])
    assert lying() == [[4, 4, 3, 3], [2, 2, 1]]
    toy.do(agent, "rollback", count=5)
    assert lying() == [[4, 4, 3, 3], [2]]
    toy.do(agent, "rollback", count=3)  # published as a whole: found until it is overwritten
    assert lying() == [[4, 4, 3, 3]]
    toy.do(agent, "append", [0])
    assert lying() == [[4, 4, 3, 0]]
    toy.do(agent, "close")
    assert lying() == []


def test_one_by_one_backwards_and_in_one_pass_are_equal() -> None:
    log = played("inms", 1)
    once = list(explain_all(log))
    explainer = Explainer(log)
    assert [explainer.next(made) for made in log.decisions] == once
    assert [explainer.next(made) for made in reversed(log.decisions)] == once[::-1]
    assert [explain(log, number) for number in range(0, len(once), 9)] == once[::9]
    assert explain(log, log.decisions[7]) == once[7]
    assert list(explain_all(log, log.decisions[3:5])) == once[3:5]
    with pytest.raises(BadInput, match="no decision"):
        explain(log, len(once))
    with pytest.raises(BadInput, match="holds the moments"):
        explainer.move(len(log) + 1)


def test_a_log_that_forgot_its_beginning_is_explained_from_there() -> None:
    log = played("inms", 2)
    whole = list(explain_all(log))
    cut = log.copy()
    cut.forget(len(log) // 2)
    late = list(explain_all(cut))
    assert 0 < len(late) < len(whole)
    for old, new in zip(whole[-len(late) :], late, strict=True):
        assert old.events == new.events
        assert [verdicts(p) for p in old.parts] == [verdicts(p) for p in new.parts]
    assert explain(cut, len(whole) - 1).decided == whole[-1].decided
    with pytest.raises(BadInput, match="no decision 0"):
        explain(cut, 0)


def test_a_live_log_is_followed_as_it_grows() -> None:
    player = Player("inms", 9)
    explainer, count = Explainer(player.toy.log), 0
    for number in player.play(150):
        if number % 10 == 0:
            for made in player.toy.log.decisions[count:]:
                assert explainer.next(made).decided == made
                count += 1
    assert count > 8


def test_explaining_changes_nothing() -> None:
    log = played("inms", 3)
    events, decisions, tokens = log.events[:], log.decisions[:], log.tokens[:]
    list(explain_all(log))
    refusals(log)
    assert (log.events, log.decisions, log.tokens) == (events, decisions, tokens)


@runs()
def test_refusals_are_of_blocks_that_the_reader_may_not_hold(mode: str, seed: int) -> None:
    log = played(mode, seed)
    found = refusals(log)
    assert bool(found) == (mode == "inms")
    for refusal in found[::5]:
        made = log.decisions[refusal.decision]
        books = log.replay(made.at)
        seq, pool = books.sequences[made.seq_id], books.pools[refusal.block.pool_id]
        assert (refusal.seq_id, refusal.reader) == (made.seq_id, seq.name)
        assert not set(pool.labels[refusal.block.block]) <= seq.clearance
        tokens = seq.segments[refusal.segment].block_tokens(refusal.index)
        assert pool.tokens[refusal.block.block] == tokens


def test_everything_is_plain_data() -> None:
    names = {t.__name__ for t in EVENT_TYPES}
    for said in explain_all(played("inms", 4)):
        plain = as_json(said)
        assert json.loads(json.dumps(plain)) == plain
        assert {event["type"] for event in plain["events"]} <= names
        hash(said)


# --- stories ---------------------------------------------------------------------------------


def last(toy: Toy) -> Explanation:
    return explain(toy.log, len(toy.log.decisions) - 1)


def of(part: Part, key: str) -> CheckResult:
    return next(check for check in part.checks if check.key == key)


def test_a_prompt_is_shared_all_yes() -> None:
    toy = Toy()
    toy.prompt(SYSTEM)
    agent = toy.agent("a")
    toy.do(agent, "append", SYSTEM, tier="global", seal=True)
    said = last(toy)
    (part,) = said.parts
    assert verdicts(part) == ["yes"] * 5 + ["not needed", "yes"]
    assert [c.value for c in part.checks] == [1, 1, 1, 1, 1, 0, 0]
    assert (said.name, said.kind, said.clearance) == ("a", "agent", ("agent:a", "group:team"))
    assert (part.segment, part.tier, part.label, part.pool_id) == (0, "global", (), "global")
    assert (part.first_position, part.num_tokens, part.blocks) == (0, 6, (0, 1))
    assert (part.num_bytes, part.num_prefill) == (8, 6)
    assert part.checks[5].why == "a prefix is exact"


def test_anothers_private_block_is_a_shadow_refusal() -> None:
    toy = Toy()
    writer, reader = toy.agent("backend"), toy.agent("frontend")
    toy.do(writer, "append", HELLO)
    toy.do(reader, "append", HELLO)
    (part,) = last(toy).parts
    assert part.outcome == "computed"
    assert verdicts(part) == ["yes", "yes", "yes", "no", "not asked", "not asked", "yes"]
    label = of(part, "label")
    why = "its label agent:backend is not within the clearance of frontend"
    assert label.dropped == (Dropped("private", 0, 4, why, refused=True),)
    assert label.why == f"block 0 of private: {why}"
    assert label.shadow
    assert [c.shadow for c in part.checks].count(True) == 1
    found = refusals(toy.log)
    assert [(r.decision, r.reader, r.index, r.block.block) for r in found] == [
        (1, "frontend", 0, 0),
        (1, "frontend", 1, 1),
    ]


def test_another_namespace_is_refused_at_check_three() -> None:
    toy = Toy(compare=False)
    writer = toy.agent("a")
    toy.engine.namespace = fingerprint.Namespace(model="another")
    reader = toy.agent("a")
    toy.do(writer, "append", HELLO)
    toy.do(reader, "append", HELLO)
    (part,) = last(toy).parts
    assert verdicts(part)[:4] == ["yes", "yes", "no", "not asked"]
    assert of(part, "namespace").shadow
    assert "another model, weight version" in of(part, "namespace").why


def test_a_block_that_is_being_written_defers() -> None:
    toy = Toy()
    first, second = toy.agent("a"), toy.agent("a")
    toy.enter(first, "append", HELLO)
    toy.enter(second, "append", HELLO)
    toy.step()  # what the first computes the second waits for
    said = last(toy)
    (part,) = said.parts
    assert said.decided.outcome == part.outcome == "deferred"
    assert verdicts(part) == ["yes", "no", *["not asked"] * 5]
    assert of(part, "written").why == "block 0 of private: it is being written"
    assert (part.num_bytes, part.num_prefill) == (0, 0)
    assert said.events == ()


def test_the_same_tokens_behind_other_text_need_a_shift() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO[:4], seal=True)
    toy.do(agent, "append", HELLO[:4], seal=True)
    (part,) = last(toy).parts
    assert verdicts(part) == ["yes", "yes", "yes", "yes", "no", "not asked", "yes"]
    why = "same tokens behind other text (needs a shift of +4: fragments)"
    assert of(part, "position").why == f"block 0 of private: {why}"
    assert not of(part, "position").shadow


def test_no_room_is_check_seven() -> None:
    toy = Toy(blocks=(2, 2, 3))
    first, second = toy.agent("a"), toy.agent("b")
    toy.do(first, "append", HELLO)
    toy.do(first, "logits")
    toy.enter(second, "append", HELLO)
    toy.run()
    said = next(s for s in explain_all(toy.log) if s.decided.outcome == "no room")
    (part,) = said.parts
    assert part.outcome == "no room"
    room = of(part, "room")
    assert (room.verdict, room.value) == ("no", 3)
    assert room.why == said.decided.reason == "private: 3 blocks needed, 0 available"


def test_a_text_that_the_reader_may_not_write_is_refused() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.ask(agent, "append", SYSTEM, tier="global", seal=True)
    toy.run()
    (part,) = last(toy).parts
    assert verdicts(part) == ["no", *["not asked"] * 2, "no", *["not asked"] * 3]
    assert of(part, "label").why == last(toy).decided.reason
    assert "may write global text" in of(part, "label").why


def test_a_copy_of_its_own_block_asks_for_the_right_to_write_and_for_room() -> None:
    toy = Toy()
    parent = toy.agent("a")
    toy.do(parent, "append", HELLO[:6])
    child = toy.do(parent, "fork")
    toy.do(child, "append", [0] * 6)
    copied, computed = last(toy).parts
    assert (copied.outcome, copied.num_tokens, copied.num_bytes) == ("copied", 2, -4)
    assert (computed.outcome, computed.num_blocks) == ("computed", 1)
    assert of(copied, "label").why == "agents may write private text"
    assert of(copied, "room").why == "1 blocks, 0 by eviction"


def test_with_a_switch_off_the_check_says_yes() -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    for switch in ("label", "position"):
        toy = Toy(inms.without(switch), compare=False)
        writer = toy.agent("a")
        reader = toy.agent("b" if switch == "label" else "a")
        toy.do(writer, "append", HELLO[:4])
        if switch == "position":
            toy.enter(reader, "append", [1, 1, 1, 1], seal=True)
        toy.enter(reader, "append", HELLO[:4])
        made = [d for d in toy.log.decisions if d.seq_id == reader]
        assert not made
        toy.engine.plan()
        assert any(
            verdicts(part) == ["yes"] * 5 + ["not needed", "yes"]
            for said in explain_all(toy.log)
            for part in said.parts
            if said.decided.seq_id == reader
        ) == (switch == "label")


# --- sources and estimates --------------------------------------------------------------------


def test_the_source_of_a_check_is_what_serving_calls() -> None:
    from inms_lab.books import table_rules
    from inms_lab.decisions import lookup, plan

    for number in (1, 2, 4, 7):
        assert inspect.getsource(CHECKS[number - 1].functions[-1]) in source_of(number)
    assert "gate.excess()" in source_of(6)
    assert "def root(" in source_of(3)
    assert "def _digest(" in source_of(5)
    assert CHECKS[6].function == "inms_lab.books.checks.blocks_to_take"
    for name in ("candidates", "same_tokens", "clears", "is_being_written"):
        assert getattr(lookup, name) is getattr(checks, name)
    for name in ("is_being_written", "may_write", "blocks_to_take"):
        assert getattr(plan, name) is getattr(checks, name)
    for name in ("clears", "is_written", "may_write", "same_tokens"):
        assert getattr(table_rules, name) is getattr(checks, name)
    with pytest.raises(BadInput, match="no check 8"):
        source_of(8)


def test_milliseconds_come_from_the_median_tokens_step() -> None:
    toy = Toy()
    agent = toy.agent("a")
    toy.do(agent, "append", HELLO)
    toy.do(agent, "write", [1], count=3)
    toy.log.durations.clear()
    assert seconds_per_token(toy.log) is None
    assert last(toy).parts[0].ms is None
    toy.log.durations.update({1: 0.9, 2: 5.0, 3: 5.0})  # nine tokens, then one each
    assert seconds_per_token(toy.log) == pytest.approx((0.1, 5.0))  # prefill, decode
    assert explain(toy.log, 0).parts[0].ms == pytest.approx(-900)
