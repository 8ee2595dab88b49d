"""Lab 00's exercise `order`: each wrong answer has a message and is shown at its event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inms_lab.books.events import Allocated, Event, Shared
from inms_lessons import EXERCISES, Wrong, examine
from inms_lessons.order import BLOCK_SIZE, RULES, TOOLS, sentence

Texts = Callable[[str], list[str]]


def in_order(*keys: str) -> Texts:
    def texts(name: str) -> list[str]:
        by_key = {"rules": RULES, "tools": TOOLS, "sentence": sentence(name)}
        return [by_key[key] for key in keys]

    return texts


LAST = in_order("rules", "tools", "sentence")
FIRST = in_order("sentence", "rules", "tools")
MIDDLE = in_order("rules", "sentence", "tools")
FOUND = (len(RULES) + len(TOOLS) + len("You are the ")) // BLOCK_SIZE


def wrong(*answer: Any) -> Wrong:
    found = examine("order", *answer)
    assert found is not None
    return found


def event_before(found: Wrong) -> Event:
    """What happened last at the moment that the view shows."""
    assert found.log is not None
    assert found.moment is not None
    return found.log.events[found.moment - 1]


def test_the_solution_passes() -> None:
    assert examine("order", FIRST, LAST, FOUND) is None
    tools_first = in_order("tools", "rules", "sentence")
    assert examine("order", FIRST, tools_first, FOUND) is None, "either order of the common texts"


@pytest.mark.parametrize("apart", [LAST, MIDDLE, in_order("tools", "rules", "sentence")])
def test_texts_that_are_still_shared_are_shown_where_they_are_found(apart: Texts) -> None:
    found = wrong(apart, LAST, FOUND)
    event = event_before(found)
    assert isinstance(event, Shared)
    assert found.where == "apart, backend reads"
    assert found.expected == "no block that is shared"
    assert found.came == f"{len(event.blocks)} found by backend"
    assert found.block == (event.pool_id, event.blocks[0])


@pytest.mark.parametrize("together", [MIDDLE, FIRST, in_order("tools", "sentence", "rules")])
def test_texts_that_could_be_shared_are_shown_where_they_are_computed(together: Texts) -> None:
    found = wrong(FIRST, together, FOUND)
    event = event_before(found)
    assert isinstance(event, Allocated)
    assert found.where == "together, backend reads"
    assert "more blocks shared" in found.expected
    assert found.block == (event.pool_id, event.blocks[0])


@pytest.mark.parametrize(
    ("hits", "hint"),
    [
        (2 * FOUND, "two agents"),
        ((len(RULES) + len(TOOLS)) // BLOCK_SIZE, "not all that is alike"),
        (FOUND + 1, "all of its letters"),
        (0, "count the letters"),
        (10**30, "count the letters"),
        (None, "whole"),
        (True, "whole"),
        (float(FOUND), "whole"),
        ("14", "whole"),
    ],
)
def test_a_wrong_number_of_hits_is_shown_where_they_are_found(hits: Any, hint: str) -> None:
    found = wrong(FIRST, LAST, hits)
    event = event_before(found)
    assert isinstance(event, Shared)
    assert len(event.blocks) == FOUND
    assert hint in found.hint
    assert found.came == repr(hits)
    assert str(FOUND) not in found.expected, "it gives the number away"


@pytest.mark.parametrize(
    ("apart", "words"),
    [
        (None, "a function apart(name)"),
        (lambda name: None, "a list of 3 texts"),
        (lambda name: RULES, "a list of 3 texts"),
        (lambda name: [RULES, TOOLS], "sentence('architect') once"),
        (lambda name: [RULES, RULES, TOOLS, sentence(name)], "RULES once"),
        (lambda name: [sentence(name), RULES, TOOLS, ""], "3 texts"),
        (lambda name: [sentence("backend"), RULES, TOOLS], "sentence('architect') once"),
        (lambda name: [1, 2, 3], "RULES once"),
        (lambda name, more: [], "code that runs"),
    ],
)
def test_other_texts_are_not_taken(apart: Any, words: str) -> None:
    assert wrong(apart, LAST, FOUND).expected == words


def test_the_stub_fails_politely() -> None:
    names: dict[str, Any] = {"RULES": RULES, "TOOLS": TOOLS, "sentence": sentence}
    exec(EXERCISES["order"].stub, names)
    found = wrong(names["apart"], names["together"], names["hits"])
    assert found.where == "apart, backend reads"
