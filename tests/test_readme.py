"""The tables of tests/README.md are true: every test that they name exists, no symptom is missing.

The list of symptoms itself is not part of the project; its numbers are.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# The numbers that the list of symptoms has; others were left out when it was made.
ENGINE = (
    *(1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18),
    *(20, 21, 22, 24, 25, 26, 27, 28, 30, 32),
)
DASHBOARD = (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22, 23)
SECTIONS = {"Symptoms of the engine": ENGINE, "Symptoms of dashboards and notebooks": DASHBOARD}


def rows(section: str) -> dict[int, list[str]]:
    """The cells of each row of a section's table, by number."""
    text = (TESTS / "README.md").read_text("utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if re.match(r"\| \d", line)]
    return {int(cells[0]): [cell.strip() for cell in cells[1:]] for cells in lines}


def functions(name: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((TESTS / name).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_symptom_has_a_row_with_tests_that_exist(section: str) -> None:
    table = rows(section)
    assert tuple(table) == SECTIONS[section]
    for number, (symptom, tests, breaks) in table.items():
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
        assert symptom, number
        assert breaks, number
        assert named, f"symptom {number} has no test"
        assert len(named) == tests.count("`") / 2, f"symptom {number}: {tests}"
        for file, test in named:
            assert test in functions(file), f"symptom {number}: {file} has no {test}"


def test_a_test_with_a_symptoms_number_is_in_that_row() -> None:
    table = rows("Symptoms of the engine")
    for path in TESTS.glob("test_*.py"):
        for test in functions(path.name):
            if match := re.match(r"test_(\d\d)_", test):
                row = table.get(int(match[1]))
                if row is not None and path.name not in ("test_lab_03.py",):
                    assert f"`{path.name}::{test}`" in row[1], f"{path.name}::{test}"
