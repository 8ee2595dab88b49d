"""The browser's code: joined and made smaller without a change of meaning; one string table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from inspect import getsource
from pathlib import Path

import pytest
import shifted
from test_ledger import Player

from inms_lab.books.checks import CHECKS
from inms_lab.books.gate import OPEN, Gate
from inms_lab.decisions.policy import MODES
from inms_lab.decisions.reuse import AFRESH, FOREIGN, GONE, NO_KV, SWITCHED_OFF
from inms_lab.errors import BadInput
from inms_lab.hindsight.explain import explain_all
from inms_lab.hindsight.whatif import what_if
from inms_lab.logs.log import Log
from inms_lab.model.positions import Positions, named_reason
from inms_widgets import esm
from inms_widgets.words import strings

JS = sorted((Path(esm.__file__).parent / "js").glob("*.js"))
NODE = shutil.which("node")


def nested_templates(source: str) -> list[str]:
    """Templates inside a template: the squeezer takes their inside for code."""
    found: list[str] = []
    stack: list[str] = []
    i = 0
    while i < len(source):
        char = source[i]
        if stack and stack[-1] == "`":
            if char == "\\":
                i += 1
            elif char == "`":
                stack.pop()
            elif source.startswith("${", i):
                stack.append("{")
                i += 1
        elif char in "\"'":
            while source[i + 1] != char:
                i += 1 + (source[i + 1] == "\\")
            i += 1
        elif source.startswith("//", i):
            i = len(source) if "\n" not in source[i:] else source.index("\n", i)
        elif char == "`":
            found += [source[i : i + 40]] * ("`" in stack)
            stack.append("`")
        elif char == "{" and stack:
            stack.append("{")
        elif char == "}" and stack:
            stack.pop()
        i += 1
    return found


def test_the_check_for_nested_templates_can_fail() -> None:
    assert nested_templates("a = `${b ? ` c` : ''}`") == ["` c` : ''}`"]
    assert not nested_templates("a = `${b}` + ` ${c({d: 1})}`; // `${`")


@pytest.mark.parametrize("path", JS, ids=lambda p: p.name)
def test_no_template_lies_inside_a_template(path: Path) -> None:
    assert not nested_templates(path.read_text("utf-8"))


def empty_bodies(source: str) -> list[str]:
    """`for (...);` and the like: the squeezer takes the semicolon before a closing brace away."""
    found = []
    for match in re.finditer(r"\b(?:for|while|if) \(", source):
        i, depth = match.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(source[i], 0)
            i += 1
        found += [source[match.start() : i + 1]] * source[i:].lstrip().startswith(";")
    return found


def test_the_check_for_empty_bodies_can_fail() -> None:
    assert empty_bodies("if (a) { while (b(c)) ; }") == ["while (b(c)) "]
    assert not empty_bodies("for (const a of b(c)) { d(); } if (e) f(g(h));")


@pytest.mark.parametrize("path", JS, ids=lambda p: p.name)
def test_what_the_squeezer_drops_means_nothing(path: Path) -> None:
    """A semicolon before a closing brace: of no empty statement, and in no string."""
    source = path.read_text("utf-8")
    assert not empty_bodies(source)
    literals = re.findall(r"\"(?:\\.|[^\"\\\n])*\"|`[^`]*`", source)
    assert not [text for text in literals if re.search(r"\S;\}", text)]


@pytest.mark.skipif(NODE is None, reason="no node here")
@pytest.mark.parametrize(
    "parts", [tuple(esm.PARTS), *((part,) for part in esm.PARTS)], ids=lambda p: "+".join(p)
)
def test_the_joined_module_is_one_that_node_can_load(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    """Two files with one name at the top would not load; a part brings what it needs."""
    path = tmp_path / "esm.mjs"
    path.write_text(esm.esm(parts), "utf-8")
    code = f"const m = await import({json.dumps(path.as_uri())}); console.log(Object.keys(m))"
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "default" in done.stdout
    path.write_text(esm.esm(parts, offline=True), "utf-8")
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", code], capture_output=True, text=True
    )
    assert "offline" in done.stdout, done.stderr


def test_every_key_that_the_code_asks_for_is_in_the_table_in_both_languages() -> None:
    table = strings()
    assert all(len(row) == 2 and all(row) for row in table.values())
    chinese = re.compile(r"[\u4e00-\u9fff]")
    plain = {key for key, (_, zh) in table.items() if not chinese.search(zh)}
    assert len(plain) < 12, f"not translated: {sorted(plain)}"
    for path in JS:
        asked = re.findall(r'\bhub\.t\("([a-z_]+)"', path.read_text("utf-8"))
        assert {key for key in asked if key[-1] != "_"} <= set(table), path.name


def test_the_placeholders_of_both_languages_agree() -> None:
    for key, (english, chinese) in strings().items():
        marks = [sorted(set(re.findall(r"\{\d\}", text))) for text in (english, chinese)]
        assert marks[0] == marks[1], key


def sayings() -> list[re.Pattern[str]]:
    """The engine's sentences that the string table knows, as patterns."""
    rows = [row[0] for key, row in sorted(strings().items()) if key.startswith("say_")]
    return [re.compile(re.sub(r"\\\{\d\\\}", "(.+?)", re.escape(row)) + r"\Z") for row in rows]


def heard(log: Log) -> set[str]:
    """Every sentence of the explanations of a log."""
    said = set()
    for explanation in explain_all(log):
        for part in explanation.parts:
            said.add(part.reason)
            for check in part.checks:
                said.update(check.why.split("; "))
                said.update(dropped.why for dropped in check.dropped)
    return said - {""}


def not_in_the_table(said: set[str]) -> list[str]:
    """Sentences without a Chinese form; what a sentence quotes is looked up like the sentence."""
    forms = sayings()
    return [text for text in said if not any(form.match(text) for form in forms)]


def test_every_sentence_of_an_explanation_is_in_the_table() -> None:
    """What the engine says in random runs, and what a what-if says, has a Chinese form."""
    said = set()
    for mode in MODES:
        for seed in range(6):
            player = Player(mode, 3000 + seed, OPEN if seed % 2 else None)
            for _ in player.play(150):
                pass
            log = player.toy.log
            said |= heard(log)
            for decided in log.decisions[:: max(1, len(log.decisions) // 4)]:
                for other in ("independent", "global"):
                    with suppress(BadInput):
                        said.update(what_if(log, decided, mode=other).words.split("; "))
    assert len(said) > 40
    assert not not_in_the_table(said - {""})


def test_every_reason_for_a_fragment_or_against_it_is_in_the_table() -> None:
    known = shifted.MEASURED.calibration
    assert known is not None
    gates = {
        "a fragment, shift +5": shifted.MEASURED,
        "gate: KL up to 0.030, the bound is 0.01": Gate(max_kl=0.01, calibration=known),
        "gate: agreement down to 0.920, the bound is 0.99": Gate(
            min_agreement=0.99, calibration=known
        ),
        "gate: this model is not calibrated": Gate(),
        "not worth it: saves 15.00 ms, costs 640.00 ms": Gate(
            calibration=replace(known, tile_ms=10)
        ),
        "encoded at another place, and fragments are switched off": None,
    }
    for reason, gate in gates.items():
        said = heard(shifted.team_run(gate).log)
        assert reason in said
        assert not not_in_the_table(said), reason
    for log in shifted.logs():
        said = heard(log)
        assert not not_in_the_table(said)
    assert "the fragment's KV is gone" in said
    assert not not_in_the_table({NO_KV, FOREIGN, SWITCHED_OFF, GONE, AFRESH})


def unsafe_reasons() -> set[str]:
    """Why a model's KV cannot be used elsewhere: every sentence that the admission can give."""
    source = "".join(getsource(f) for f in (Positions._finding, Positions._reason, named_reason))
    found = set(re.findall(r'"([a-z][^"]{19,})"', source))
    return {text.replace("{kind}", "dynamic") for text in found} | {
        "its frequencies depend on the length of the context"
    }


def test_every_reason_why_a_model_is_not_safe_to_shift_is_in_the_table() -> None:
    reasons = unsafe_reasons()
    assert len(reasons) == 7, reasons
    assert not not_in_the_table(reasons), "in their own right: they are quoted"
    for unsafe in (*reasons, f"in layer 3, {min(reasons)}"):
        said = heard(shifted.team_run(unsafe=unsafe).log)
        assert f"position: {unsafe}" in said
        assert not not_in_the_table(said)


def test_the_stepper_asks_the_engines_own_questions() -> None:
    table = strings()
    for check in CHECKS:
        said = table[f"check_{check.key}"][0]
        assert said.lower() == f"{check.key}: {check.question}".lower()
