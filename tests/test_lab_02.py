"""Lab 02's exercise `blocks`: each fault, and each wrong way to mend it, is found in its place."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from inms_lab.books.events import Commanded, Copied, Published, Registered, Shared
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.mending import NUM_BLOCKS, reference

STUB = EXERCISES["blocks"].stub

NEW = ("            self.found[key], self.key[block] = block, key\n",)
COUNTED = """            self.refs[block] = 1
            self.found[key], self.key[block] = block, key
            row.append(block)
"""
COPY = """            row[-1] = self.free.pop()
"""
COUNTED_COPY = """            row[-1] = self.free.pop()
            self.refs[row[-1]] = 1
"""
IN_PLACE = """        else:
            self.text[block] = text

    def fork"""
FORGOTTEN = """        else:
            self.found.pop(self.key.pop(block, None), None)
            self.text[block] = text

    def fork"""
LET_GO = (
    "                self.found.pop(self.key.pop(block, None), None)\n                self.free"
)

FIRST = STUB.replace(NEW[0], COUNTED)
SECOND = FIRST.replace(COPY, COUNTED_COPY)
MENDED = SECOND.replace(IN_PLACE, FORGOTTEN)


def class_of(code: str) -> type:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["Blocks"]


def wrong(code: str) -> Wrong:
    found = examine("blocks", class_of(code))
    assert found is not None
    return found


def operation(found: Wrong) -> int:
    """Its number; the view stands exactly behind it."""
    number = int(found.where.split()[1].rstrip(","))
    moments, log = reference()
    assert found.log is log
    assert found.moment == moments[number].index
    assert moments[number].words() in found.where
    return number


def events_of(found: Wrong) -> list[type]:
    """What the engine did in that operation."""
    moments, log = reference()
    number = operation(found)
    return [type(event) for event in log.events[moments[number - 1].index : moments[number].index]]


def test_the_edits_above_are_edits() -> None:
    assert len({STUB, FIRST, SECOND, MENDED}) == 4


def test_the_mended_class_passes() -> None:
    assert examine("blocks", class_of(MENDED)) is None


def test_a_pool_that_finds_what_was_freed_passes_too() -> None:
    """The engine itself keeps freed blocks findable until they are needed."""
    code = MENDED.replace(
        "self.free.pop()\n            self.text", "self.take()\n            self.text"
    )
    code = code.replace("row[-1] = self.free.pop()", "row[-1] = self.take()")
    code = code.replace(LET_GO, "                self.free").replace(
        "            self.refs[block] += 1\n            row.append",
        "            self.refs[block] += 1\n"
        "            if block in self.free: self.free.remove(block)\n"
        "            row.append",
    )
    code += """
    def take(self):
        block = self.free.pop(0)
        self.found.pop(self.key.pop(block, None), None)
        return block
"""
    assert examine("blocks", class_of(code)) is None


def test_the_first_fault_shows_with_the_first_block() -> None:
    found = wrong(STUB)
    assert operation(found) == 0
    assert "reads" in found.expected
    assert found.came == "[]"
    assert "0 blocks" in found.hint


def test_the_second_fault_shows_at_the_first_copy() -> None:
    found = wrong(FIRST)
    assert Copied in events_of(found)
    assert found.expected.startswith("refcount 1 for block")
    assert found.came == "None"
    moments, log = reference()
    first = next(i for i, event in enumerate(log.events) if isinstance(event, Copied))
    before = moments[operation(found) - 1].index
    assert before <= first < moments[operation(found)].index


def test_the_third_fault_hands_out_a_strangers_text() -> None:
    found = wrong(SECOND)
    assert "never asked for" in found.hint
    assert operation(found) > operation(wrong(FIRST)), "it stays hidden for longer"
    moments, _ = reference()
    here = moments[operation(found)]
    reader, wanted = here.operation[1], list(here.texts[here.operation[1]])
    assert found.expected == f"{reader} reads {wanted}"
    came = ast.literal_eval(found.came)
    (index,) = [i for i, text in enumerate(came) if text != wanted[i]]
    written = [m.operation for m in moments if m.operation[0] == "write"]
    assert [who for _, who, text in written if text == came[index]] != [reader]
    assert found.block == (here.pool_id, here.blocks[reader, index])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "        if self.refs[block] > 1:  # copy on write\n",
            "        if False:\n",
            "never asked for",
        ),
        ("            self.refs[block] -= 1\n        else", "        else", "number of tables"),
        ("                self.free.append(block)\n", "", "free when nobody"),
        ("(*[self.text[block] for block in row], text)", "text", "all that stands before"),
        ("        if key in self.found:", "        if False:", "all that stands before"),
        (LET_GO, "                self.free", ""),
        (
            "        if self.refs[block] > 1:  # copy on write\n",
            "        self.found.pop(self.key.pop(block, None), None)\n"
            "        if self.refs[block] > 1:\n",
            "all that stands before",
        ),
        ("= list(self.table[seq])", "= self.table[seq]", ""),
        (
            "            self.refs[block] += 1\n            row",
            "            row",
            "number of tables",
        ),
    ],
)
def test_other_ways_to_get_it_wrong_are_found_at_their_operation(
    old: str, new: str, words: str
) -> None:
    assert MENDED.count(old) == 1, old
    found = wrong(MENDED.replace(old, new))
    assert operation(found) >= 0
    assert found.expected
    assert found.came
    assert words in found.hint


def test_an_error_of_the_students_is_told_with_its_line() -> None:
    found = wrong(MENDED.replace("row = self.table[seq]", "row = self.tables[seq]"))
    assert "AttributeError: 'Blocks' object has no attribute 'tables'" in found.came
    assert operation(found) >= 0


@pytest.mark.parametrize("junk", [None, 3, "Blocks", [], {}, lambda n: n, int, dict, object])
def test_what_is_no_such_class_is_told(junk: Any) -> None:
    found = examine("blocks", junk)
    assert found is not None
    assert found.expected
    assert found.came


def test_the_operations_have_all_that_they_are_to_test() -> None:
    moments, log = reference()
    assert len(moments) == 200
    verbs = {moment.operation[0] for moment in moments}
    assert verbs == {"append", "write", "fork", "close"}
    assert max(moment.num_held for moment in moments) <= NUM_BLOCKS
    kinds = {type(event) for event in log.events}
    assert {Shared, Copied, Published, Registered, Commanded} <= kinds
