"""The registry of claims: computed verdicts, results read from files, one table for the README."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inms_lab.errors import BadInput
from inms_lab.studies import bill, claims
from inms_lab.studies.claims import (
    BEGIN,
    END,
    VERDICTS,
    Claim,
    registry,
    to_markdown,
    update_readme,
)

README = Path(__file__).resolve().parents[1] / "README.md"


def result(claim_id: str = "fine-locks", **changes: Any) -> dict[str, Any]:
    entry = {"measured": "4 %", "interval": "2 to 6 %", "verdict": "does not hold"}
    return {
        "command": "inms-lab bench locks",
        "machine": "2 cores",
        "seed": 7,
        "rows": [1, 2, 3],
        "claims": {claim_id: {**entry, **changes}},
    }


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value), "utf-8")


def by_id(folder: Path) -> dict[str, Claim]:
    return {claim.claim_id: claim for claim in registry(folder)}


# --- computed --------------------------------------------------------------------------------


def test_the_34_gib_example_does_not_hold_by_its_own_formula(tmp_path: Path) -> None:
    claim = by_id(tmp_path)["kv-eight-agents"]
    assert claim.verdict == "does not hold"
    by_hand = ((1 - 0.6) * 8 + 0.6) * 16 * 1024 * 0.5 / 1024  # GiB: 0.5 MiB a token
    assert f"64.0 GiB become {by_hand:.1f} GiB" in claim.measured
    assert "30.4 GiB" in claim.measured


def test_the_three_agents_example_holds_with_the_exact_share(tmp_path: Path) -> None:
    claim = by_id(tmp_path)["kv-three-agents"]
    assert claim.verdict == "holds"
    assert "12.00 GiB become 7.50 GiB, 37.5% less, with 4.5k of 8k" in claim.measured
    rounded = (0.44 * 3 + 0.56) * 4  # GiB: 8k tokens of 0.5 MiB are 4 GiB
    assert f"{rounded:.2f} GiB, {1 - rounded / 12:.1%} less, with the rounded" in claim.measured


def test_a_token_of_a_7b_model_is_512_kib(tmp_path: Path) -> None:
    claim = by_id(tmp_path)["kv-token-7b"]
    assert (claim.verdict, claim.measured) == ("holds", "512 KiB")


def test_verdicts_follow_the_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another formula the same registry says something else: nothing is typed in."""
    monkeypatch.setattr(bill, "shared_bytes", lambda n, tokens, p, s: 34 * 1024**3)
    changed = by_id(tmp_path)
    assert changed["kv-eight-agents"].verdict == "holds"
    assert changed["kv-three-agents"].verdict == "does not hold"


# --- the registry ----------------------------------------------------------------------------


def test_ids_are_unique_and_every_claim_has_text_source_and_verdict(tmp_path: Path) -> None:
    found = registry(tmp_path)
    assert len({claim.claim_id for claim in found}) == len(found) == 10
    for claim in found:
        assert claim.text
        assert "section" in claim.source or "paragraph" in claim.source
        assert claim.verdict in VERDICTS


def test_nothing_is_said_about_what_was_not_measured(tmp_path: Path) -> None:
    waiting = [c for c in registry(tmp_path) if c.verdict == "not measured yet"]
    assert len(waiting) == 7
    for claim in waiting:
        assert (claim.command, claim.measured, claim.interval, claim.machine) == ("", "", "", "")
        assert claim.seed is None
        assert claim.area in {"fragments", "robustness", "parameters"}


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(BadInput, match="'maybe' is none of holds, does not hold"):
        Claim("x", "text", "source", verdict="maybe")


def test_a_result_file_fills_its_claim_and_no_other(tmp_path: Path) -> None:
    before = by_id(tmp_path)
    write(tmp_path, "locks.json", result())
    after = by_id(tmp_path)
    claim = after.pop("fine-locks")
    assert (claim.measured, claim.interval, claim.verdict) == ("4 %", "2 to 6 %", "does not hold")
    assert (claim.command, claim.machine, claim.seed) == ("inms-lab bench locks", "2 cores", 7)
    before.pop("fine-locks")
    assert after == before


def test_result_files_without_claims_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "a.json", {"rows": [1]})
    write(tmp_path, "b.json", [1, 2])
    assert registry(tmp_path) == registry(tmp_path / "no such folder")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (result("no-such-claim"), "unknown claims: no-such-claim"),
        (result(verdict="perhaps"), "verdict 'perhaps' is none of"),
        ({"claims": {"fine-locks": {"measured": "4 %"}}}, "KeyError"),
        ({**result(), "claims": ["fine-locks"]}, "is no readable result"),
    ],
)
def test_results_of_another_shape_are_refused(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    write(tmp_path, "r.json", content)
    with pytest.raises(BadInput, match=message):
        registry(tmp_path)


def test_a_damaged_result_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{", "utf-8")
    with pytest.raises(BadInput, match=r"r\.json is no readable result"):
        registry(tmp_path)


def test_two_results_for_one_claim_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.json", result())
    write(tmp_path, "b.json", result())
    with pytest.raises(BadInput, match=r"two results for claim fine-locks, one in .*b\.json"):
        registry(tmp_path)


# --- shown -----------------------------------------------------------------------------------


def test_every_row_of_the_table_has_as_many_cells_as_its_head() -> None:
    odd = Claim("x", "a | b", "s", command="c", measured="m", seed=3, verdict="holds")
    lines = to_markdown([odd, *registry()]).splitlines()
    assert (lines[0], lines[-1]) == (BEGIN, END)
    cells = {line.replace("\\|", "").count("|") for line in lines[1:-1]}
    assert cells == {9}
    assert lines[3] == "| a \\| b | s | m |  |  | 3 | `c` | **holds** |"
    assert len(lines) == 4 + 1 + len(registry())


def test_the_readme_changes_between_the_markers_only(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold table\n{END}\n\nThe end — €\n", "utf-8")
    assert update_readme(page) is True
    assert page.read_text("utf-8") == f"# Title\n\n{to_markdown()}\n\nThe end — €\n"
    assert update_readme(page) is False


@pytest.mark.parametrize("text", ["no markers", BEGIN, END, f"{END} {BEGIN}"])
def test_a_readme_without_markers_is_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text, "utf-8")
    with pytest.raises(BadInput, match="needs the lines"):
        update_readme(page)
    assert page.read_text("utf-8") == text


def test_the_repository_s_readme_holds_the_present_table() -> None:
    if not README.exists():
        pytest.skip("this checkout has no README.md to compare with")
    assert to_markdown() in README.read_text("utf-8")


def test_print_shows_every_claim_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    claims.print_claims()
    out = capsys.readouterr().out
    assert "[does not hold] 8 agents of 16k tokens" in out
    assert "to be measured" not in out, "every claim has a figure by now"
    assert all(claim.claim_id in out for claim in registry())


def test_print_as_json_gives_the_registry_back(capsys: pytest.CaptureFixture[str]) -> None:
    claims.print_claims(json=True)
    assert [Claim(**entry) for entry in json.loads(capsys.readouterr().out)] == list(registry())
