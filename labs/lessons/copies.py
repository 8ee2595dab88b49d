"""Copies of the labs: with the solutions in their places, and without any, for students.

A lab's own text is the only source. A stub's cell begins with the line `# Exercise: NAME`; below it
a folded part of a text cell, `<details><summary>Solution ...`, holds a code block that begins with
the same line.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inms_lab.errors import BadInput

FIRST = re.compile(r"# Exercise: ([a-z]+)")
SOLUTION = re.compile(r"<details[^>]*>\s*<summary>\W*solution.*?</details>\s*", re.DOTALL | re.I)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
TITLE = re.compile(r"# Lab (\d\d) · (.+)")
FACTS = re.compile(r"\*(\d+) minutes · (\w+)")
QUESTION = re.compile(r"^> \*\*(.+?)\*\*$", re.MULTILINE)
TEACHERS = re.compile(r"<!-- teachers -->.*?<!-- end -->\n*", re.DOTALL)  # not for students
PATH_WORDS = "part of the 45-minute path"

Notebook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LabFacts:
    """What a lab's first cell says of it."""

    number: str
    title: str
    question: str
    minutes: int
    level: str
    on_path: bool
    file: str


def source(cell: Notebook) -> str:
    """A cell's text."""
    return "".join(cell["source"]).replace("\r\n", "\n")


def facts(path: Path) -> LabFacts:
    """What the first cell of a lab says; raises `BadInput` where it does not say it."""
    first = source(_read(path)["cells"][0])
    title, said, question = TITLE.match(first), FACTS.search(first), QUESTION.search(first)
    if not (title and said and question):
        raise BadInput(f"{path.name}: its first cell lacks a title, minutes or a question")
    minutes, level = said.groups()
    about = (title[1], title[2].strip(), question[1], int(minutes), level)
    return LabFacts(*about, PATH_WORDS in first, path.name)


def all_facts(folder: Path) -> list[LabFacts]:
    """Of every lab in a folder, in order."""
    return [facts(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]


def listed(folder: Path) -> str:
    """The labs of a folder as lines: file, question, minutes, level."""
    lines = []
    for fact in all_facts(folder):
        path = ", on the 45-minute path" if fact.on_path else ""
        lines.append(
            f"{fact.file}\n    {fact.question} ({fact.minutes} minutes, {fact.level}{path})"
        )
    return "\n".join(lines)


def solutions_in(notebook: Notebook) -> dict[str, str]:
    """Exercise -> the code of its folded solution."""
    texts = (source(c) for c in notebook["cells"] if c["cell_type"] == "markdown")
    folded = [part for text in texts for part in SOLUTION.findall(text)]
    codes = [code.rstrip() for part in folded for code in CODE.findall(part)]
    return {found[1]: code for code in codes if (found := FIRST.match(code))}


def stubs_in(notebook: Notebook) -> dict[str, str]:
    """Exercise -> the code of its cell."""
    codes = (source(c) for c in notebook["cells"] if c["cell_type"] == "code")
    return {found[1]: code for code in codes if (found := FIRST.match(code))}


def solved(notebook: Notebook) -> Notebook:
    """The lab with each solution in the place of its stub."""
    solutions = solutions_in(notebook)
    copy = without_solutions(notebook)
    for cell in copy["cells"]:
        found = FIRST.match(source(cell)) if cell["cell_type"] == "code" else None
        if found and found[1] in solutions:
            cell["source"] = solutions[found[1]].splitlines(keepends=True)
    return copy


def without_solutions(notebook: Notebook) -> Notebook:
    """The lab without its folded solutions; a text cell that holds nothing else goes."""
    copy = json.loads(json.dumps(notebook))
    for cell in copy["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION.sub("", source(cell)).rstrip().splitlines(keepends=True)
    copy["cells"] = [c for c in copy["cells"] if c["cell_type"] == "code" or source(c)]
    return dict(copy)


def for_students(labs: Path, folder: Path) -> str:
    """Write every lab without solutions and outputs, and the pages beside them, into `folder`; says
    what to do with them. Raises `BadInput` where files are there: somebody may have worked in them.
    """
    folder = folder.expanduser()
    paths = [*sorted(labs.glob("[0-9]*.ipynb")), *sorted(labs.glob("*.md"))]
    there = [path.name for path in paths if (folder / path.name).exists()]
    if there:
        raise BadInput(f"{folder} already holds {there[0]}: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.suffix == ".md":
            text = TEACHERS.sub("", path.read_text("utf-8"))
            (folder / path.name).write_text(text.rstrip() + "\n", "utf-8")
            continue
        copy = without_solutions(_read(path))
        for cell in copy["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"execution_count": None, "outputs": []}
        _write(copy, folder / path.name)
    command = shlex.join([sys.executable, "-m", "jupyterlab", str(folder)])
    return f"{len(paths)} files in {folder}; open them with:\n{command}"


def _read(path: Path) -> Notebook:
    return dict(json.loads(path.read_text("utf-8")))


def _write(notebook: Notebook, path: Path) -> None:
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", "utf-8")
