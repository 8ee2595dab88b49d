"""Masked logs: the books are the same to the event, and nothing of a private text is left.

The logs come of the random operations of test_ledger.py on a toy engine, with words that only
private texts use, so that a single one in a file is found.
"""

from __future__ import annotations

import gzip
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_ledger import Player
from toy import Toy

from inms_lab.books.events import Allocated, Commanded, Published, Released
from inms_lab.books.gate import OPEN
from inms_lab.books.label import is_shared
from inms_lab.books.ledger import Ledger
from inms_lab.decisions.policy import MODES, Inms
from inms_lab.errors import BadInput, error_type
from inms_lab.logs.log import Log
from inms_lab.logs.logfile import MASKED, load
from inms_lab.logs.redact import NOWHERE, redacted

PUBLIC = range(5)
PRIVATE = (31337, 32448, 33559, 34671, 35782)
OTHER = (50021, 41233, 40123, 55555, 47381)


class Spy(Player):
    """Random operations in which only prompts and records use public words."""

    def __init__(self, mode: str, seed: int, words: Any, vocab: int) -> None:
        self.words = words
        super().__init__(mode, seed, gate=OPEN if seed % 2 else None)  # every second with fragments
        model = self.toy.model
        model.vocab_size = vocab
        model.next_token = lambda state: vocab // 2 + state * 0x9E37 % (vocab // 2)  # type: ignore[method-assign]

    def text(self, most: int = 9) -> list[int]:
        return [self.words[token] for token in super().text(most)]

    def new_prompt(self) -> None:
        self._publicly(super().new_prompt)

    def new_record(self, replaces: int = -1) -> None:
        self._publicly(lambda: super(Spy, self).new_record(replaces))

    def _publicly(self, act: Any) -> None:
        words, self.words = self.words, PUBLIC
        act()
        self.words = words


@cache
def _spied(mode: str, seed: int, words: tuple[int, ...], vocab: int) -> Log:
    player = Spy(mode, seed, words, vocab)
    for _ in player.play(250):
        pass
    return player.toy.log


def spied(mode: str, seed: int, words: tuple[int, ...] = PRIVATE, vocab: int = 60_000) -> Log:
    """The log of a run; nobody else has it."""
    log = _spied(mode, seed, words, vocab).copy()
    log.durations.clear()  # two runs never take the same time
    log.piece = lambda token: b"piece %d" % token
    return log


def bare(books: Ledger) -> dict[str, Any]:
    """The books without what texts say: blocks instead of keys, lengths instead of tokens."""
    state = books.snapshot()
    for pool in state["pools"].values():
        pool["keys"] = [block for block, _ in pool["keys"]]
        pool["tokens"] = [(block, len(tokens)) for block, tokens in pool["tokens"]]
        pool["index"] = [blocks for _, blocks in pool["index"]]
        pool["pending"] = [block for _, block in pool["pending"]]
        pool["promised"] = [block for block, _ in pool["promised"]]
    for seq in state["sequences"].values():
        for segment in seq["segments"]:
            segment["tokens"] = len(segment["tokens"])
            del segment["root"], segment["behind"]
    return state


def keys_of(log: Log) -> set[bytes]:
    found: set[bytes] = set()
    for event in log.events:
        found.update(getattr(event, "keys", ()))
    for pool in (log.snapshot or {"pools": {}})["pools"].values():
        found.update(key for key, _ in (*pool["index"], *pool["pending"]))
    return found - {b""}


def public_keys(log: Log) -> set[bytes]:
    """Keys of blocks whose text and all that stands before it were preloaded or released."""
    books, found, public = Ledger.replay(log.snapshot, (), log.tokens), set[bytes](), {*PUBLIC}
    for event in log.events:
        books.apply(event)
        if isinstance(event, Allocated | Published):
            seq = books.sequences[event.seq_id]
            segment = seq.segments[event.segment]
            first = len(segment.blocks) - len(event.blocks)
            first = event.first if isinstance(event, Published) else first
            for index, key in enumerate(event.keys, first):
                stop = min(len(segment.tokens), (index + 1) * segment.block_size)
                end = segment.first_position + stop
                if seq.kind != "agent" or public.issuperset(seq.tokens()[:end]):
                    found.add(key)
    return found


def private_words(log: Log) -> set[int]:
    words, snapshot = {*log.tokens}, log.snapshot or {"sequences": {}, "pools": {}}
    for seq in snapshot["sequences"].values():
        words.update(*(segment["tokens"] for segment in seq["segments"]))
    for pool in snapshot["pools"].values():
        words.update(*(array("i", tokens) for _, tokens in pool["tokens"]))
    return words - {*PUBLIC}


def assert_silent(log: Log, path: Path, redact: str = "private") -> None:
    """Neither a private word nor a key of a private text stands in the saved file."""
    log.save(path, redact=redact)
    text = gzip.decompress(path.read_bytes()).decode()
    numbers = {int(number) for number in re.findall(r"(?<![0-9a-f])\d+(?![0-9a-f])", text)}
    assert private_words(log)
    assert not private_words(log) & numbers
    hexes = set(re.findall(r'"([0-9a-f]+)"', text))
    secret = keys_of(log) - (public_keys(log) if redact == "private" else set())
    assert not {key.hex() for key in secret} & hexes


def assert_same_books(log: Log, masked: Log, rng: random.Random) -> None:
    """Event by event, but for what the texts say."""
    assert (masked.first, len(masked)) == (log.first, len(log))
    first = Ledger.replay(log.snapshot, (), log.tokens)
    second = Ledger.replay(masked.snapshot, (), masked.tokens)
    assert bare(first) == bare(second)
    for mine, theirs in zip(log.events, masked.events, strict=True):
        assert type(mine) is type(theirs)
        first.apply(mine)
        second.apply(theirs)
        if rng.random() < 0.1:
            assert bare(first) == bare(second)
    assert bare(first) == bare(second)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
def test_the_books_are_the_same_and_private_text_is_gone(
    tmp_path: Path, mode: str, seed: int
) -> None:
    log = spied(mode, seed)
    assert_silent(log, tmp_path / "a")
    assert_silent(log, tmp_path / "b", redact="all")
    for name in "ab":
        assert_same_books(log, load(tmp_path / name), random.Random(seed))
    assert max(load(tmp_path / "b").tokens) < 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("redact", ["private", "all"])
@pytest.mark.parametrize("seed", range(5))
def test_logs_that_differ_in_private_text_alone_give_one_file(
    tmp_path: Path, mode: str, redact: str, seed: int
) -> None:
    one, two = spied(mode, seed), spied(mode, seed, words=OTHER, vocab=59_998)
    assert one.tokens != two.tokens
    one.save(tmp_path / "one", redact=redact)
    two.save(tmp_path / "two", redact=redact)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    half = len(one) // 2
    one.forget(half)
    two.forget(half)
    try:
        one.save(tmp_path / "one", redact=redact)
    except BadInput:
        with pytest.raises(BadInput, match="cannot be masked"):
            two.save(tmp_path / "two", redact=redact)
        return
    two.save(tmp_path / "two", redact=redact)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_log_that_begins_with_a_snapshot_is_masked_too_or_refused(
    tmp_path: Path, mode: str
) -> None:
    outcomes = Counter[str]()
    for seed in range(12):
        log, rng = spied(mode, seed), random.Random(seed)
        known = public_keys(log)
        for at in sorted(rng.sample(range(1, len(log)), 3)):
            log.forget(at)
            try:
                masked = redacted(log)
            except BadInput as error:
                outcomes[str(error)] += 1
                continue
            outcomes["masked"] += 1
            assert_same_books(log, masked, rng)
            assert not (keys_of(log) & keys_of(masked)) - known
            assert not private_words(log) & private_words(masked)
            masked.save(tmp_path / "a")
            assert bare(load(tmp_path / "a").replay()) == bare(log.replay())
    assert outcomes["masked"] >= 30, outcomes


def parts(log: Log, masked: Log) -> Iterator[tuple[Any, int, array[int], Any]]:
    """(holder, where it begins, what is seen, the segment as it was) of what is no fragment."""
    books, theirs = log.replay(), masked.replay()
    for seq_id, seq in books.sequences.items():
        if any(segment.is_fragment for segment in seq.segments):
            continue  # a fragment is seen as what it is where it was encoded
        for segment, seen in zip(seq.segments, theirs.sequences[seq_id].segments, strict=True):
            yield seq, segment.first_position, seen.tokens, segment


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_a_mask_stands_for_a_whole_context_and_for_nothing_else(mode: str, seed: int) -> None:
    log = spied(mode, seed)
    shown, meaning = {}, {}
    for seq, first, seen, segment in parts(log, redacted(log)):
        tokens, whose = tuple(seq.tokens()), "" if is_shared(segment.label) else seq.name
        for index, word in enumerate(seen, first):
            context = (whose, seq.namespace, tokens[: index + 1])
            if mode == "global" or not {*PUBLIC} & {*context[2]}:  # all of one provenance
                assert shown.setdefault(context, word) == word, "one context, two masks"
            if word < 0:
                assert meaning.setdefault(word, context) == context, "one mask, two contexts"
            else:
                assert word == tokens[index]
    assert meaning
    assert (mode == "global") == all(not whose for whose, _, _ in meaning.values())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_private_words_that_others_released_too(mode: str, seed: int) -> None:
    player = Player(mode, seed, gate=OPEN if seed % 2 and mode != "global" else None)
    for _ in player.play(250):  # all of one small vocabulary
        pass
    log, whose = player.toy.log, dict[int, str]()
    for keep in (("prompt", "released"), ("prompt",), ()):
        assert_same_books(log, redacted(log, keep), random.Random(seed))
    if mode == "global":
        return
    for seq, _, seen, segment in parts(log, redacted(log)):
        for word in seen:
            name = "" if is_shared(segment.label) else seq.name
            assert word >= 0 or whose.setdefault(word, name) == name, "two principals, one mask"
    assert {*whose.values()} & {*"abc"}
    log.forget(len(log) // 2)
    for keep in (("prompt", "released"), ("prompt",), ()):
        assert_same_books(log, redacted(log, keep), random.Random(seed))


MINE, NEWS = [4, 2, 4, 2, 4], [3, 1, 3, 1, 3, 1]


@pytest.mark.parametrize("mode", MODES)
def test_equal_private_texts_are_told_only_where_the_block_tables_tell_of_them(mode: str) -> None:
    toy = Toy(mode)
    ada, ben, cy = (toy.agent(name) for name in ("ada", "ben", "cy"))
    for agent, guess in ((ada, MINE), (ben, MINE), (cy, [*MINE[:3], 0, 0])):
        toy.do(agent, "append", guess)
    fork = toy.do(ada, "fork")
    for agent in (ada, fork, ben):
        toy.do(agent, "append", NEWS)
        toy.do(agent, "write", count=2)
    seen = {i: s.tokens().tolist() for i, s in redacted(toy.log).replay().sequences.items()}
    assert seen[ada] == seen[fork], "one principal"
    if mode == "global":
        assert seen[ada] == seen[ben]
        assert seen[ada][:3] == seen[cy][:3]
    else:
        assert not {*seen[ada]} & {*seen[ben]}
        assert not {*seen[ada], *seen[ben]} & {*seen[cy]}
    assert max(max(tokens) for tokens in seen.values()) < 0


def attach(toy: Toy, agent: int, record: int, text: list[int]) -> None:
    """As a lab does it: the record's place in the token table is said too."""
    released = (e for e in toy.log.events if isinstance(e, Released) and e.seq_id == record)
    where = {"tier": "group", "group": "team", "seal": True, "offset": next(released).offset}
    toy.do(agent, "append", text, record=record, **where)


@pytest.mark.parametrize("mode", ["inms", "independent"])
@pytest.mark.parametrize("prompt", [[], [1, 1, 1, 1, 2]])
def test_what_was_read_privately_stays_masked_though_the_words_were_released(
    mode: str, prompt: list[int]
) -> None:
    toy = Toy(mode, blocks=(8, 8, 40))
    encodes = toy.engine.policy.encodes_prompts
    offset = toy.log.add_tokens(prompt)[0]
    if prompt and encodes:
        holder = toy.engine.register("prompt", "prompt", frozenset())
        toy.do(holder, "append", prompt, tier="global", seal=True, offset=offset)

    def agent(name: str) -> int:
        seq_id = toy.agent(name)
        if prompt:
            toy.do(seq_id, "append", prompt, tier="global", seal=True, offset=offset)
        return seq_id

    before, after, reader, late = map(agent, ("ada", "ben", "cy", "di"))
    toy.do(before, "append", NEWS)
    record = toy.engine.register("record", "r", frozenset({"group:team"}))
    toy.cache.record(Released(record, "ada", "team", *toy.log.add_tokens(NEWS)))
    if encodes:
        if prompt:
            toy.do(record, "append", prompt, tier="global", seal=True, offset=offset)
        place = next(e.offset for e in toy.log.events if isinstance(e, Released))
        where = {"tier": "group", "group": "team", "seal": True, "offset": place}
        toy.do(record, "append", NEWS, **where)
    toy.do(after, "append", NEWS)
    attach(toy, reader, record, NEWS)
    toy.do(late, "append", MINE)
    attach(toy, late, record, NEWS)  # behind private text: computed, privately placed
    masked, start = redacted(toy.log), len(prompt)
    assert_same_books(toy.log, masked, random.Random(0))
    seen = [seq.tokens().tolist() for seq in masked.replay().sequences.values()]
    for seq_id in (before, after, reader, late) if encodes else ():
        assert seen[seq_id][:start] == prompt
    assert seen[reader][start:] == NEWS
    assert seen[late][start + len(MINE) :] == NEWS
    assert max(seen[before][start:] + seen[after][start:]) < 0
    assert max(seen[late][start : start + len(MINE)]) < 0


def test_one_block_for_a_private_and_a_released_text_of_one_principal_is_seen_as_one() -> None:
    toy = Toy("inms", blocks=(8, 8, 40))
    first = toy.record("team", [1, 1, 1, 1])
    record = toy.record("team", NEWS)
    one, two, three = toy.agent("ada"), toy.agent("ada"), toy.agent("ben")
    for agent in (one, two, three):
        attach(toy, agent, first, [1, 1, 1, 1])
        toy.do(agent, "append", MINE, seal=True)
    toy.do(one, "append", NEWS, seal=True)
    toy.do(three, "append", NEWS, seal=True)
    attach(toy, two, record, NEWS)
    assert toy.table(one)[-1] == toy.table(two)[-1] != toy.table(three)[-1]
    masked = redacted(toy.log)
    assert_same_books(toy.log, masked, random.Random(0))
    seen = [seq.tokens().tolist() for seq in masked.replay().sequences.values()]
    assert seen[one] == seen[two]
    assert seen[two][-len(NEWS) :] == NEWS
    assert max(seen[three][4:]) < 0


def test_public_text_can_still_be_read() -> None:
    kinds = Counter[str]()
    for seed in range(6):
        log = spied("inms", seed)
        masked = redacted(log)
        books, theirs = log.replay(), masked.replay()
        for seq_id, seq in books.sequences.items():
            same = theirs.sequences[seq_id].tokens() == seq.tokens()
            kinds[seq.kind, same and seq.num_tokens > 0] += 1
        for mine, other in zip(log.events, masked.events, strict=True):
            if isinstance(mine, Released) and isinstance(other, Released):
                place, there = slice(mine.offset, mine.offset + mine.length), other.offset
                assert log.tokens[place] == masked.tokens[there : there + other.length]
    assert kinds["prompt", True]
    assert kinds["record", True]
    assert kinds["agent", False] > kinds["agent", True]


def story() -> tuple[Toy, Log]:
    """A prompt, a released record, an agent that read both and says more."""
    toy = Toy()
    toy.prompt([1, 1, 1, 1, 2])
    toy.record("team", [3, 3, 3], behind=([1, 1, 1, 1, 2],))
    agent = toy.agent("a")
    toy.do(agent, "append", [1, 1, 1, 1, 2], tier="global", seal=True)
    toy.do(agent, "append", [4, 2, 4, 2, 4])
    return toy, toy.log


def test_a_small_story_to_the_token() -> None:
    toy, log = story()
    private, everything = redacted(log).replay(), redacted(log, ()).replay()
    assert [*private.sequences[0].tokens()] == [1, 1, 1, 1, 2]
    assert [*private.sequences[1].tokens()] == [1, 1, 1, 1, 2, 3, 3, 3]
    assert [*private.sequences[2].tokens()] == [1, 1, 1, 1, 2, -10, -11, -12, -13, -14]
    assert [*everything.sequences[2].tokens()] == [-2, -3, -4, -5, -6, -10, -11, -12, -13, -14]
    sealed = toy.ledger.sequences[0].segments[0].key(0)
    assert private.sequences[0].segments[0].key(0) == sealed, "a digest of public text"
    assert everything.sequences[0].segments[0].key(0) != sealed
    only = redacted(log, ("prompt",))
    assert [*only.replay().sequences[1].tokens()] == [1, 1, 1, 1, 2, -7, -8, -9]


def test_a_released_text_that_nobody_read_is_of_unknown_context() -> None:
    toy = Toy()
    seq_id = toy.engine.register("record", "r", frozenset({"group:team"}))
    toy.cache.record(Released(seq_id, "author", "team", *toy.log.add_tokens([3, 4])))
    assert [*redacted(toy.log, ()).tokens] == [NOWHERE, NOWHERE]
    assert [*redacted(toy.log).tokens] == [3, 4]


def test_tokens_that_no_event_names_are_left_out() -> None:
    _, log = story()
    log.add_tokens([4, 4, 4, 4])
    assert redacted(log).tokens == redacted(story()[1]).tokens


def test_only_words_that_can_be_read_have_pieces(tmp_path: Path) -> None:
    _, log = story()
    log.piece = [b"word %d" % token for token in range(6)].__getitem__  # a mask has none
    log.save(tmp_path / "a", redact="private")
    piece = load(tmp_path / "a").piece
    assert piece
    assert piece(-10) == MASKED
    assert [piece(token) for token in range(5)] == [b"?", b"word 1", b"word 2", b"word 3", b"?"]
    log.save(tmp_path / "a", redact="all")
    piece = load(tmp_path / "a").piece
    assert piece
    assert {piece(token) for token in range(5)} == {b"?"}


def test_errors_keep_their_type_only(tmp_path: Path) -> None:
    toy, log = story()
    toy.engine.end(2, "fail", "KeyError: 'my password'")
    log.errors[2] = "Traceback (most recent call last):\n  in f\nKeyError: 'my password'\n"
    log.save(tmp_path / "a", redact="private")
    assert b"password" not in gzip.decompress((tmp_path / "a").read_bytes())
    masked = load(tmp_path / "a")
    assert masked.errors == {2: "KeyError"}
    causes = [e.cause for e in masked.events if isinstance(e, Commanded) and e.verb == "fail"]
    assert causes == ["KeyError"]
    assert "password" in log.errors[2], "the log itself is as it was"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("ValueError: a: b", "ValueError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("inms_lab.errors.PoolExhausted: no room", "PoolExhausted"),
        ("BadInput: \u00e9\nTypeError: second line of a message", "BadInput"),
        ("Traceback (most recent call last):\n  a\n    b\nOSError: x\nKeyError: y", "OSError"),
        ("Traceback (most recent call last):\n  a\nhttpx.Secret: x", "error"),
        ("the secret plan: attack", "error"),
        ("secret: attack", "error"),
        ("print: attack", "error"),
        ("re: attack", "error"),
        ("", "error"),
    ],
)
def test_the_type_of_an_error(told: str, kind: str) -> None:
    assert error_type(told) == kind


def test_what_cannot_be_masked_soundly_is_refused(tmp_path: Path) -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    toy = Toy(inms.without("position"))
    toy.do(toy.agent("a"), "append", [1, 2, 3])
    with pytest.raises(BadInput, match="check of positions"):
        toy.log.save(tmp_path / "a", redact="private")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(BadInput, match="prompt or released"):
        redacted(toy.log, ("private",))


@pytest.mark.parametrize("off", ["label", "tokens", "pending"])
def test_lessons_without_other_checks_are_masked(off: str) -> None:
    inms = MODES["inms"]
    assert isinstance(inms, Inms)
    toy = Toy(inms.without(off), compare=False)
    for name in "ab":
        agent = toy.agent(name)
        toy.do(agent, "append", [1, 2, 3, 4, 0, 1, 2, 3])
        toy.do(agent, "write", [], count=3)
    masked = redacted(toy.log)
    assert_same_books(toy.log, masked, random.Random(0))
    assert max(masked.tokens) < 0
