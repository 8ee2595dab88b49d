"""Publishing and attaching: versions, stale records, texts that are offered, bad input."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from inms_lab.books.events import Commanded, Copied, Released, Shared
from inms_lab.books.gate import DEFAULT, OPEN, Calibration, Gate
from inms_lab.config import Config
from inms_lab.errors import (
    BadInput,
    ContextTooLong,
    NotAMember,
    NotCalibrated,
    PoolExhausted,
    RecordSuperseded,
    StepInterrupted,
    TextTooLarge,
    UnknownGroup,
)
from inms_lab.hindsight.explain import explain_all
from inms_lab.model.forward import DryModel
from inms_lab.notebook.lab import Lab
from inms_lab.publishing.records import Record
from inms_lessons.small_labs import letter_lab

SIZE = 4
PROMPT, MINE, YOURS = list(range(10)), list(range(20, 31)), list(range(40, 53))
NEWS, MORE = list(range(100, 110)), list(range(200, 209))
KNOWN = Calibration("dry", 0.02, (0.01, 0.03), 0.95, (0.93, 0.97), 50, 1.0, 0.01, "made up")


def lab(**options: Any) -> Lab:
    """Blocks of four tokens, no weights; every fragment passes unless a gate is given."""
    blocks = options.pop("group_blocks", 16)
    sizes = (64 * SIZE, blocks * SIZE, 64 * SIZE)
    config = Config(SIZE, 0, options.pop("budget", 64), 200, *sizes, debug=True)
    model = options.pop("model", None) or DryModel(4096, options.pop("context", 200), 1)
    out = Lab(model, config=config, **({"gate": OPEN} | options))
    out.preload(PROMPT, progress=False)
    return out


def team_of(lab: Lab) -> tuple[Any, Any, Any]:
    team = lab.group("t")
    return (team, *team.agents("ada", "ben"))


def outcomes(lab: Lab, name: str) -> Counter[str]:
    """Tokens by outcome of one agent."""
    out: Counter[str] = Counter()
    for row in lab.reused().rows:
        if row.holder == name and row.num_tokens:
            out[row.outcome] += row.num_tokens
    return out


def test_a_record_behind_other_text_is_mounted_at_a_shift_and_takes_no_block() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        team.publish(NEWS, by=ada)
        before = {p: pool.num_held for p, pool in it.engine.ledger.pools.items()}
        computed = it.engine.num_computed
        ben.attach(team).result()
        after = {p: pool.num_held for p, pool in it.engine.ledger.pools.items()}
        assert before == after
        assert it.engine.num_computed == computed
        segment = it.engine.ledger.sequences[ben.seq_id].segments[-1]
        assert (segment.first_position, segment.encoded) == (21, 10)
        assert segment.is_fragment
        assert not any(isinstance(e, Copied) for e in it.log.events)
        assert outcomes(it, "ben")["shared at a shift"] == len(NEWS)


def test_the_same_record_twice_and_in_a_fork() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        record = team.publish(NEWS, by=ada)
        ben.attach(record).result()
        ben.attach(record).result()  # it is there
        assert len(ben.tokens) == len(PROMPT) + len(NEWS)
        child = ben.fork().result()
        child.attach(team).result()
        assert child.tokens == ben.tokens


def test_records_are_encoded_behind_each_other_or_behind_the_prompt_alone() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(NEWS, by=ada)
        chained = team.publish(MORE, by=ada)
        apart = team.publish(YOURS, by=ada, behind="prompt")
        books = it.engine.ledger.sequences
        assert [len(s.tokens) for s in books[chained.seq_id].segments] == [10, 10, 9]
        assert [len(s.tokens) for s in books[apart.seq_id].segments] == [10, 13]
        ben.attach(team).result()
        segments = books[ben.seq_id].segments
        assert [s.is_fragment for s in segments] == [False, False, False, True]


def test_superseding_marks_stale_and_the_stale_are_encoded_again_before_the_next_attach() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        first = team.publish(NEWS, by=ada)
        second = team.publish(MORE, by=ada)
        ben.attach(team).result()
        assert ben.outdated == []
        new = team.publish(YOURS, by=ada, replaces=first)
        assert (new.name, new.version) == (first.name, 2)
        assert ben.outdated == [first]
        assert it.engine.ledger.records["t"] == (new.seq_id, second.seq_id)
        (cai,) = team.agents("cai")
        cai.attach(team).result()
        again = team.records[1]
        assert (again.tokens, again.version) == (second.tokens, 2)
        assert again.seq_id != second.seq_id
        behind = it.engine.ledger.sequences[again.seq_id].segments
        assert [s.source for s in behind][1:] == [new.seq_id, -1]
        assert not any(s.is_fragment for s in it.engine.ledger.sequences[cai.seq_id].segments)
        ben.attach(team).result()  # the new text, and not again the text that it has
        assert ben.tokens[-len(YOURS) :] == YOURS
        assert ben.tokens.count(MORE[0]) == 1
        assert ben.outdated == [first]


def test_a_superseded_record_goes_when_nobody_reads_it_any_longer() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        old = team.publish(NEWS, by=ada)
        ben.attach(team).result()
        team.publish(MORE, by=ada, replaces=old)
        ada.read(MINE).result()
        sequences = it.engine.ledger.sequences
        assert sequences[old.seq_id].is_live
        held = it.engine.ledger.pools["group:t"].num_held
        ben.close().result()
        ada.read(MINE).result()
        assert sequences[old.seq_id].state == "reclaimed"
        assert it.engine.ledger.pools["group:t"].num_held < held


def test_a_superseded_record_stays_for_who_has_asked_for_it_already() -> None:
    """Asked for, replaced, and only then the lab takes a step: it is mounted, and goes later."""
    with lab() as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        old = team.publish(NEWS, by=ada)
        asked = ben.attach(old)
        team.publish(MORE, by=ada, replaces=old)
        asked.result()
        assert outcomes(it, "ben")["shared at a shift"] == len(NEWS)
        assert ben.outdated == [old]
        ben.close().result()
        ada.read(MINE).result()
        assert it.engine.ledger.sequences[old.seq_id].state == "reclaimed"


def test_whether_a_record_is_there_is_asked_when_the_attach_enters() -> None:
    """Not when it is asked for: what was asked before may fork, or cut it off."""
    with lab() as it:
        team, ada, ben = team_of(it)
        record = team.publish(NEWS, by=ada)
        child, later = ben.fork(), ben.attach(team)
        fork = child.result()
        later.result()
        fork.attach(team).result()
        assert fork.tokens == ben.tokens == [*PROMPT, *NEWS]
        cut, again = ben.rollback(len(NEWS)), ben.attach(record)
        cut.result()
        assert again.result() == len(PROMPT) + len(NEWS)
        assert ben.tokens == [*PROMPT, *NEWS]
        assert ben.attach(record).result() == len(ben.tokens)
        assert ben.tokens == [*PROMPT, *NEWS]


def test_a_part_of_a_record_or_an_edited_one_is_not_the_record() -> None:
    with letter_lab() as it:
        team = it.group("t")
        ada, ben = team.agents("ada", "ben")
        record = team.publish("NEWSnews", by=ada, role=None)
        ben.read("x", role=None).result()
        ben.attach(record).result()
        ben.rewrite("x", "y" * 40).result()
        ben.rollback(8).result()
        ben.attach(record).result()
        assert ben.text == "y" * 40 + "NEWSnews"
        ben.rollback(2).result()
        for _ in range(3):
            ben.attach(record).result()
        assert ben.text == "y" * 40 + "NEWSneNEWSnews"


def test_a_record_that_is_replaced_while_it_is_encoded_is_encoded_all_the_same() -> None:
    """Its publisher waits for it, and has done nothing wrong."""
    with lab(budget=2) as it:
        team, ada, ben = team_of(it)
        newer: list[Record] = []

        def replace_it(_: object) -> None:
            if not newer:
                newer.append(team.publish(MORE, by=ben, replaces=team.records[0]))

        with it.watching(replace_it):
            old = team.publish(NEWS, by=ada)
        assert team.records == newer
        ada.attach(team).result()
        assert ada.tokens == [*PROMPT, *MORE]
        assert it.engine.ledger.sequences[old.seq_id].state == "reclaimed"


def test_a_text_that_holds_again_is_attached_again() -> None:
    """Its newest version in the context counts, not one before."""
    with lab() as it:
        team, ada, ben = team_of(it)
        first = team.publish(NEWS, by=ada)
        ben.attach(team).result()
        second = team.publish(MORE, by=ada, replaces=first)
        ben.attach(team).result()
        team.publish(NEWS, by=ada, replaces=second)
        ben.attach(team).result()
        ben.attach(team).result()
        assert ben.tokens == [*PROMPT, *NEWS, *MORE, *NEWS]


def test_a_cancelled_attach_can_be_asked_for_again() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(NEWS, by=ada)
        assert ben.attach(team).future.cancel()
        ben.attach(team).result()
        assert ben.tokens == [*PROMPT, *NEWS]


def test_an_interrupted_attach_is_not_taken_in_twice() -> None:
    with lab(gate=None, budget=4) as it:
        team, ada, ben = team_of(it)
        record = team.publish(NEWS, by=ada)
        ben.read(MINE).result()
        with it.watching(lambda _: it.driver.interrupt()), pytest.raises(StepInterrupted):
            ben.attach(record).result()
        ben.attach(record).result()
        assert ben.tokens == [*PROMPT, *MINE, *NEWS]


@pytest.mark.parametrize("stale", [False, True])
def test_an_interrupt_loses_no_record(stale: bool) -> None:
    """Neither one that is being replaced, nor one that is encoded again for an attach."""
    with lab(budget=4) as it:
        team, ada, ben = team_of(it)
        first = team.publish(NEWS, by=ada)
        team.publish(MORE, by=ada)
        if stale:
            team.publish(YOURS, by=ada, replaces=first)
        ask = (
            (lambda: ben.attach(team).result())
            if stale
            else (lambda: team.publish(YOURS, by=ada, replaces=first))
        )
        with it.watching(lambda _: it.driver.interrupt()), pytest.raises(StepInterrupted):
            ask()
        assert [list(r.tokens) for r in team.records] == [YOURS if stale else NEWS, MORE]
        ben.attach(team).result()
        assert ben.tokens == [*PROMPT, *(YOURS if stale else NEWS), *MORE]


def test_what_could_not_replace_a_record_leaves_its_text() -> None:
    """The new text has no room beside a reader's: its publisher is told, and the old text holds."""
    with lab(group_blocks=5) as it:
        team, ada, ben = team_of(it)
        old = team.publish(NEWS, by=ada)
        ben.attach(team).result()
        with pytest.raises(PoolExhausted):
            team.publish(MORE, by=ada, replaces=old)
        (record,) = team.records
        assert (record.tokens, record.version) == (tuple(NEWS), 3)
        with pytest.raises(RecordSuperseded, match="use version 3"):
            ben.attach(old)
        assert not ben.outdated
        ben.attach(team).result()
        assert ben.tokens == [*PROMPT, *NEWS]
        ada.attach(team).result()
        assert ada.tokens == [*PROMPT, *NEWS]


def test_a_program_that_publishes_in_vain_is_told_of_at_the_end() -> None:
    with lab(group_blocks=3) as it:
        team, ada, ben = team_of(it)
        ben.attach([9] * 9).result()  # holds all of it

        async def program(me: Any) -> None:
            team.publish([7] * 9, by=me, behind="prompt")
            await me.read(MINE)

        it.start({ada: program})
        it.run_to()
        assert len(team.records) == 1
        with pytest.raises(PoolExhausted):
            it.assert_clean()


def test_a_stale_record_that_cannot_be_encoded_again_is_computed_by_its_readers() -> None:
    with lab(group_blocks=6) as it:
        team, ada, ben = team_of(it)
        first = team.publish(NEWS, by=ada)
        second = team.publish(MORE, by=ada)
        ben.attach(team).result()  # 6 blocks are held for it
        ada.read(YOURS).result()
        with suppress(PoolExhausted):
            team.publish(YOURS[:3], by=ada, replaces=first)
        ada.attach(team).result()
        assert [r.tokens for r in team.records][1:] == [second.tokens]
        assert ada.tokens[-len(MORE) :] == MORE


def test_a_text_that_cannot_enter_is_not_released() -> None:
    with lab(context=30) as it:
        team, _, ben = team_of(it)
        ben.read(MINE).result()
        with pytest.raises(ContextTooLong):
            ben.attach(NEWS)
        with pytest.raises(BadInput):
            ben.attach(NEWS[:2], recompute=-1)
        assert not team.records
        assert not any(isinstance(e, Released) for e in it.log.events)


def test_a_name_is_free_when_its_last_fork_has_ended() -> None:
    """Else the next agent of that name would find what the fork has read in private."""
    with lab() as it:
        _, ada, _ = team_of(it)
        ada.read(MINE).result()
        fork = ada.fork().result()
        ada.close().result()
        with pytest.raises(BadInput, match="a fork of it"):
            it.agent("ada")
        fork.close().result()
        it.agent("ada").read(MINE).result()
        assert outcomes(it, "ada")["computed"] == 2 * len(MINE)


def test_deviations_are_for_members_and_of_records() -> None:
    with lab() as it:
        team, ada, _ = team_of(it)
        record = team.publish(NEWS, by=ada)
        (cy,) = it.group("u").agents("cy")
        forged = Record("u/1", "x", (), ada.seq_id, 0, "u")
        for wrong, error in ((record, NotAMember), (forged, BadInput), ("x", BadInput)):
            with pytest.raises(error):
                cy.deviating(wrong)


def test_numbers_of_blocks_must_fit_every_record_before_one_is_attached() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(NEWS, by=ada)
        team.publish(MORE[:2], by=ada)
        with pytest.raises(BadInput, match="blocks 0 to 0"):
            ben.attach(team, recompute=[2])
        ben.read(MINE).result()
        assert ben.tokens == [*PROMPT, *MINE]


def test_a_superseded_record_is_refused_by_the_name_of_the_one_that_holds() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        old = team.publish(NEWS, by=ada)
        new = team.publish(MORE, by=ada, replaces=old)
        with pytest.raises(RecordSuperseded, match="use version 2"):
            ben.attach(old)
        with pytest.raises(RecordSuperseded):
            team.publish(YOURS, by=ada, replaces=old)
        ben.attach(new).result()


def test_a_text_that_a_tool_gave_is_offered_once_and_found_by_its_content() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        ada.read(MINE).result()
        ada.attach(NEWS, tier="group").result()
        ben.read(YOURS).result()
        ben.attach(list(NEWS), tier="group").result()
        assert len(team.records) == 1
        (released,) = [e for e in it.log.events if isinstance(e, Released)]
        assert released.by == "ada"
        assert outcomes(it, "ada")["shared at a shift"] == len(NEWS)
        assert outcomes(it, "ben")["shared at a shift"] == len(NEWS)


def test_private_text_is_no_fragment_for_anybody_not_even_for_its_owner() -> None:
    """Whether its KV is there just now depends on what others do; a result may not."""
    with lab() as it:
        _, ada, ben = team_of(it)
        twin = ada.fork().result()
        ada.read(NEWS, seal=True).result()
        twin.read(MINE).result()
        twin.read(NEWS, seal=True).result()
        ben.read(YOURS).result()
        ben.read(NEWS, seal=True).result()
        assert outcomes(it, "ada")["shared at a shift"] == 0
        assert outcomes(it, "ben")["shared at a shift"] == 0


def test_a_released_text_is_found_by_whoever_reads_it_sealed() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(NEWS, by=ada)
        ben.read(MINE).result()
        ben.read(NEWS, seal=True).result()
        assert outcomes(it, "ben")["shared at a shift"] == len(NEWS)


@pytest.mark.parametrize("before", [[], MINE])
def test_a_record_that_is_still_being_encoded_is_waited_for(before: list[int]) -> None:
    """However long it takes, and whether it is attached in its place or at a shift."""
    long = [i % 300 for i in range(50)]
    with lab() as it:
        it.engine.config = replace(it.engine.config, token_budget=7)
        team, ada, ben = team_of(it)
        if before:
            ben.read(before).result()

        async def program(me: Any) -> None:
            team.publish(NEWS, by=ada)
            team.publish(long, by=ada, behind="prompt")
            await me.attach(team)

        it.start({ben: program})
        it.run_to()
        assert ben.tokens == [*PROMPT, *before, *NEWS, *long]
        verbs = [e.verb for e in it.log.events if isinstance(e, Commanded)]
        assert "detach" not in verbs
        assert outcomes(it, "ben")["computed"] == len(before)


@pytest.mark.parametrize("before", [[], MINE])
def test_a_record_that_could_not_be_encoded_is_computed_by_who_has_attached_it(
    before: list[int],
) -> None:
    with lab(group_blocks=6) as it:
        team, ada, ben = team_of(it)
        if before:
            ben.read(before).result()
        team.publish(list(range(300, 316)), by=ada)

        async def program(me: Any) -> None:
            team.publish(NEWS, by=ada, behind="prompt")
            await me.attach(NEWS, tier="group")

        it.start({ben: program})
        it.run_to()
        assert ben.tokens == [*PROMPT, *before, *NEWS]
        assert "detach" in [e.verb for e in it.log.events if isinstance(e, Commanded)]
        assert outcomes(it, "ben")["computed"] == len(before) + len(NEWS)
        it.check()


def test_in_mode_global_anybody_finds_it() -> None:
    with lab(mode="global") as it:
        _, ada, ben = team_of(it)
        ada.read(MINE).result()
        ada.read(NEWS, seal=True).result()
        ben.read(NEWS, seal=True).result()
        assert outcomes(it, "ben")["shared at a shift"] == len(NEWS)


def test_first_tokens_a_share_or_named_blocks_are_computed_afresh() -> None:
    for recompute, fresh in ((4, 4), (5, 8), (0.5, 8), (1.0, 10), ([1], 4), (0, 0), (99, 10)):
        with lab() as it:
            team, ada, ben = team_of(it)
            ben.read(MINE).result()
            team.publish(NEWS, by=ada)
            ben.attach(team, recompute=recompute).result()
            assert ben.tokens[-len(NEWS) :] == NEWS
            found = outcomes(it, "ben")
            assert found["shared at a shift"] == len(NEWS) - fresh, recompute
            assert not any(isinstance(e, Copied) for e in it.log.events)


def test_a_cut_inside_a_fragment_leaves_whole_blocks_of_it() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        team.publish(NEWS, by=ada)
        ben.attach(team).result()
        ben.rollback(3).result()
        ben.read(YOURS).result()
        assert ben.tokens == [*PROMPT, *MINE, *NEWS[:7], *YOURS]
        segments = it.engine.ledger.sequences[ben.seq_id].segments
        lengths = [(len(s.tokens), s.is_fragment) for s in segments]
        assert lengths == [(10, False), (11, False), (4, True), (3, False), (13, False)]


# the gate ----------------------------------------------------------------------------------------


def reasons(gate: Gate | None, text: list[int] = NEWS, **options: Any) -> set[str]:
    with lab(gate=gate, **options) as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        team.publish(text, by=ada)
        ben.attach(team).result()
        return {e.cause for e in it.log.events if isinstance(e, Commanded) and e.length} - {""}


def test_the_gate_says_why_it_lets_nothing_through() -> None:
    assert reasons(Gate(calibration=KNOWN)) == set()
    assert reasons(Gate(0.02, calibration=KNOWN)) == {"gate: KL up to 0.030, the bound is 0.02"}
    low = Gate(min_agreement=0.95, calibration=KNOWN)
    assert reasons(low) == {"gate: agreement down to 0.930, the bound is 0.95"}
    assert reasons(None) == {"encoded at another place, and fragments are switched off"}
    assert reasons(DEFAULT) == {"gate: this model is not calibrated"}


def test_what_costs_more_than_it_saves_is_computed() -> None:
    dear = Gate(calibration=KNOWN, horizon=5000)
    (why,) = reasons(dear)
    assert why == "not worth it: saves 10.00 ms, costs 50.00 ms"


def test_a_gate_that_was_asked_for_needs_a_calibration() -> None:
    with pytest.raises(NotCalibrated, match="inms-lab calibrate"):
        lab(gate=Gate(max_kl=0.01))


def test_a_model_that_cannot_be_shifted_computes() -> None:
    model = DryModel(4096, 200, 1)
    model.unsafe = "its positions are learned"
    assert reasons(OPEN, model=model) == {"position: its positions are learned"}


@pytest.mark.parametrize("wrong", [{"max_kl": -1}, {"min_agreement": 1.5}, {"horizon": 0}])
def test_bounds_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Gate(**wrong)  # type: ignore[arg-type]


# bad input ---------------------------------------------------------------------------------------


def test_bad_input_is_a_named_error_and_the_lab_goes_on() -> None:
    with lab(group_blocks=4) as it:
        team, ada, ben = team_of(it)
        other = it.group("u")
        (eve,) = other.agents("eve")
        record = team.publish(NEWS, by=ada)
        events = len(it.log)
        with pytest.raises(TextTooLarge, match="publish less"):
            team.publish(list(range(300, 330)), by=ada)
        with pytest.raises(NotAMember):
            eve.attach(team)
        with pytest.raises(NotAMember):
            eve.attach(record)
        with pytest.raises(NotAMember):
            team.publish(MORE, by=eve)
        with pytest.raises(UnknownGroup):
            it.agent("alone").attach(MORE)
        events = len(it.log)
        for recompute in (-1, 1.5, True, "all", [9]):
            with pytest.raises(BadInput):
                ben.attach(team, recompute=recompute)
        with pytest.raises(BadInput, match="'records' or 'prompt'"):
            team.publish(MORE, by=ada, behind="nothing")
        with pytest.raises(BadInput, match="is no record"):
            team.publish(MORE, by=ada, replaces=NEWS)
        with pytest.raises(BadInput, match="'group' or 'private'"):
            ben.attach(MORE, tier="global")
        assert len(it.log) == events
        ben.attach(team).result()


def test_a_context_over_the_limit_after_attaching() -> None:
    with lab(context=40) as it:
        team, ada, ben = team_of(it)
        ben.read(list(range(400, 425))).result()
        team.publish(NEWS, by=ada)
        with pytest.raises(ContextTooLong, match="45 tokens, the limit is 40"):
            ben.attach(team).result()
        ben.rollback(10).result()
        ben.attach(team).result()
        assert len(ben.tokens) == 35


# symptoms ----------------------------------------------------------------------------------------


def test_a_log_is_explained_where_a_reader_waited_for_what_it_computes() -> None:
    """A plan on an overlay, as explaining makes it, waits as serving did."""
    with lab(gate=None) as it:
        _, _, ben = team_of(it)
        ben.read([77] * 3, role=None).result()
        ben.attach(NEWS).result()
        assert "is being encoded" in " ".join(d.reason for d in it.log.decisions)
        assert len([*explain_all(it.log)]) == len(it.log.decisions)


def test_what_was_not_reused_is_said_and_a_second_run_reuses_more() -> None:
    """Symptom 24 (LMCache#2442, #1823, #2029): reuse is on, nothing is reused, nothing says so."""
    with lab(gate=DEFAULT) as it:
        team, ada, ben = team_of(it)
        ben.read(MINE).result()
        team.publish(NEWS, by=ada)
        ben.attach(team).result()
        report = it.reused()
        assert "computed: gate: this model is not calibrated" in repr(report)
        assert set(report.to_pandas().columns) >= {"holder", "outcome", "reason", "num_tokens"}
    with lab() as it:
        shares = []
        for run in range(2):
            team = it.group("t")
            one, two = team.agents(f"one{run}", f"two{run}")
            computed = it.engine.num_computed
            for me in (one, two):
                me.read(MINE).result()
                me.attach(NEWS, tier="group").result()
            shares.append(it.engine.num_computed - computed)
        assert shares[1] < shares[0]
        assert 0 < it.reused().share < 1


def test_shared_blocks_carry_the_shift_of_each_reader() -> None:
    with lab() as it:
        team, ada, ben = team_of(it)
        team.publish(NEWS, by=ada)
        ada.read(MINE).result()
        ben.read([*YOURS, *MINE]).result()
        for me in (ada, ben):
            me.attach(team).result()
        shared = [e for e in it.log.events if isinstance(e, Shared) and e.pool_id == "group:t"]
        assert shared[-1].blocks == shared[-2].blocks
        shifts = [it.engine.ledger.sequences[a.seq_id].segments[-1].shift for a in (ada, ben)]
        assert shifts == [11, 24]
