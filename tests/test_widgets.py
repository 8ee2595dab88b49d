"""Snapshots say what the books say; pictures are safe and stable. No browser (test_browser.py) and
no model."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from urllib.parse import unquote

import pytest

from inms_lab import Lab
from inms_lab.config import Config
from inms_lab.errors import BadInput
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_widgets import show_recorded, snapshot_at, snapshot_of
from inms_widgets.picture import MOST_BLOCKS, MOST_NAME, render_html, render_svg
from inms_widgets.recorded import FILE, from_json, to_json
from inms_widgets.snapshot import CACHED, FREE, HELD, Block, Snapshot

BYTES_PER_TOKEN = 1024
PROMPT, TOOLS = list(range(40)), list(range(50, 80))  # 3 and 2 blocks of 16


@pytest.fixture
def lab() -> Iterator[Lab]:
    with dry_lab(debug=True) as lab:
        yield lab


def dry_lab(num_blocks: int = 200, context: int = 2048, debug: bool = False) -> Lab:
    """No model; `num_blocks` blocks of 16 tokens in each pool."""
    room = num_blocks * 16 * BYTES_PER_TOKEN
    sizes = {"global_bytes": room, "group_bytes": room, "private_bytes": room}
    config = Config(block_size=16, context=context, debug=debug, **sizes)
    return Lab(DryModel(100, context, BYTES_PER_TOKEN), config=config)


def work(lab: Lab) -> list[Agent]:
    """Three agents behind a prompt; two records; a fork, an edit, a rollback and an end."""
    lab.preload(PROMPT, tools=TOOLS)
    team = lab.group("checkout")
    agents = team.agents("architect", "backend", "frontend")

    async def program(me: Agent) -> None:
        me.read([len(me.name)] * 20)
        await me.write(20)

    asyncio.run(lab.run(dict.fromkeys(agents[:2], program)))
    team.publish([7] * 20, by=agents[0])
    agents[2].attach(team)
    asyncio.run(lab.run({agents[2]: program}))
    agents[1].fork().result()
    agents[0].rollback(25).result()
    agents[1].close().result()
    return agents


def same_as_books(shot: Snapshot, lab: Lab, index: int | None = None) -> None:
    """Refcounts, states and tables, read off the books in another way."""
    books = lab.log.replay(index)
    assert [pool.pool_id for pool in shot.pools] == list(books.pools)
    for row in shot.pools:
        pool = books.pools[row.pool_id]
        assert row.num_held + row.num_cached + row.num_free == row.num_blocks
        assert {b.number: b.refs for b in row.blocks if b.state == HELD} == dict(pool.refs)
        assert {b.number for b in row.blocks if b.state == CACHED} == set(pool.cached)
        assert {b.number for b in row.blocks if b.state == FREE} <= set(pool.free)
        assert [b.number for b in row.blocks] == list(range(len(row.blocks)))
    for seq in books.sequences.values():
        held = {(s.pool_id, block) for s in seq.segments for block in s.blocks}
        named = {
            (row.pool_id, block.number)
            for row in shot.pools
            for block in row.blocks
            if any(name.partition(" (")[0] == seq.name for name in block.holders)
        }
        assert held <= named, seq.name


# --- snapshots --------------------------------------------------------------------------------


def test_snapshots_at_every_log_index_say_what_the_books_say(lab: Lab) -> None:
    work(lab)
    for index in range(len(lab.log) + 1):
        same_as_books(snapshot_at(lab.log, index), lab, index)
    now = snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN)
    assert now.held_bytes == 1024 * 16 * sum(pool.num_held for pool in now.pools)
    assert snapshot_at(lab.log).agents == now.agents


def test_a_snapshot_of_three_agents_behind_one_prompt(lab: Lab) -> None:
    lab.preload(PROMPT, tools=TOOLS)
    agents = [lab.agent(name) for name in ("architect", "backend", "frontend")]
    for agent in agents:
        agent.read([len(agent.name)] * 20).result()
    shot = snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN)
    everybody = ("prompt", "architect", "backend", "frontend")
    prompts, private = shot.pools
    assert [(b.state, b.holders) for b in prompts.blocks] == [(HELD, everybody)] * 5
    assert [b.holders for b in private.blocks] == [(a.name,) for a in agents for _ in range(2)]
    assert [(a.num_tokens, a.num_shared, a.num_own) for a in shot.agents] == [(90, 5, 2)] * 3
    assert shot.independent_bytes == 3 * 7 * 16 * BYTES_PER_TOKEN
    assert shot.held_bytes == (5 + 3 * 2) * 16 * BYTES_PER_TOKEN


def test_blocks_that_were_in_use_stay_in_the_picture(lab: Lab) -> None:
    agent = lab.agent("backend")
    agent.read([1] * 64).result()
    agent.close().result()
    (_, private) = snapshot_at(lab.log).pools
    assert [block.state for block in private.blocks] == [FREE] * 4


# --- pictures ---------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def assert_harmless(html: str) -> None:
    """No script, no handler, nothing loaded, in the page and in the images that it carries."""
    for tag, attributes in Tags(html).tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "foreignobject", "use"}
        assert not [name for name in attributes if name.startswith("on") or name == "href"]
        source = attributes.get("src")
        if source is not None:
            assert source.startswith("data:image/svg+xml,")
            assert_harmless(unquote(source.partition(",")[2]))
    assert "javascript:" not in html.lower()
    assert "@import" not in html
    assert "url(" not in html


def test_a_name_that_is_too_long_keeps_what_tells_forks_apart(lab: Lab) -> None:
    agent = lab.agent("a planner of parties")
    agent.read([1] * 20).result()
    fork = agent.fork().result()
    picture = render_svg(snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN))
    short = re.findall(r'<text x="20"[^>]*>(a p[^<]*)</text>', picture)
    assert short == ["a planner of pa…", f"a plan… (fork {fork.seq_id})"]
    assert {len(name) for name in short} == {MOST_NAME}


def test_pictures_are_script_free_and_well_formed(lab: Lab) -> None:
    lab.agent("<script>alert(1)</script>").read([1] * 20).result()
    lab.agent('"quoted" & <b>bold</b>').read([2] * 20).result()
    shot = snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN)
    for picture in (render_svg(shot), render_html(shot), render_html(shot, "zh")):
        assert_harmless(picture)
        assert "<script" not in picture
        assert "<b>bold" not in picture
    ElementTree.fromstring(render_svg(shot))
    (source,) = re.findall(r'src="data:image/svg\+xml,([^"]*)"', render_html(shot))
    ElementTree.fromstring(unquote(source))


def test_the_refcount_is_a_number_and_a_lightness(lab: Lab) -> None:
    work(lab)
    shot = snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN)
    svg = render_svg(shot)
    cells = re.findall(r'class="r(\d)"><title>.*?</title></rect><text [^>]*>(\d+)</text>', svg)
    drawn = [(int(shade), int(number)) for shade, number in cells]
    assert sorted(number for _, number in drawn) == sorted(
        b.refs for pool in shot.pools for b in pool.blocks if b.state == HELD
    )
    assert all(shade == min(number, 4) for shade, number in drawn)
    fills = dict(re.findall(r"\.r(\d)\{fill:#([0-9a-f]{6})\}", svg))
    lightness = [_luminance(fills[str(shade)]) for shade in (1, 2, 3, 4)]
    assert all(b - a > 0.08 for a, b in pairwise(lightness))


def test_numbers_can_be_read_on_their_cells() -> None:
    """Contrast of at least 4.5 (WCAG AA) for every cell."""
    svg = render_svg(Snapshot(0, (), (), 0, 0))
    fills = dict(re.findall(r"\.r(\d)\{fill:#([0-9a-f]{6})\}", svg))
    inks = {1: "ffffff", 2: "10141d", 3: "10141d", 4: "10141d"}
    assert ".t1{fill:#fff}" in svg
    assert ".t4{fill:#10141d}" in svg
    for shade, ink in inks.items():
        dark, light = sorted((_luminance(fills[str(shade)]), _luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, shade


def _luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2)."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_a_large_pool_is_cut_and_says_so() -> None:
    with dry_lab(num_blocks=400, context=8000) as lab:
        lab.agent("backend").read([1] * 16 * (MOST_BLOCKS + 5)).result()
        shot = snapshot_of(lab.engine.ledger, BYTES_PER_TOKEN)
    svg = render_svg(shot)
    assert svg.count("<rect") < MOST_BLOCKS + 50
    assert "+ 5 used blocks that are not drawn" in svg
    assert f"+ {400 - MOST_BLOCKS - 5} blocks never used" in svg
    assert len(svg) < 120_000


# --- the recorded run -------------------------------------------------------------------------


def test_the_recorded_run_is_small_labelled_and_whole() -> None:
    assert FILE.stat().st_size < 60_000
    recording = show_recorded()
    assert json.loads(json.dumps(to_json(recording))) == json.loads(FILE.read_text())
    assert from_json(to_json(recording)) == recording
    bundle = recording._repr_mimebundle_()
    assert bundle["text/plain"] == "a recorded run of smollm2-135m"
    assert "not a live one" in bundle["text/html"]
    assert len(bundle["text/html"]) < 100_000
    assert_harmless(bundle["text/html"])
    assert not re.search(r"20\d\d-\d\d", FILE.read_text()), "it has no date"
    last = recording.moments[-1][1]
    assert {agent.name for agent in last.agents} == set(recording.texts)
    assert all(recording.texts.values())
    assert max(block.refs for pool in last.pools for block in pool.blocks) >= 4


def test_an_unknown_version_of_a_recording_is_an_error() -> None:
    with pytest.raises(ValueError, match="version 99"):
        from_json({"version": 99})


def test_snapshots_and_recordings_load_without_torch_and_widgets() -> None:
    code = (
        "import sys, inms_widgets\n"
        "inms_widgets.snapshot_of, inms_widgets.show_recorded()._repr_mimebundle_()\n"
        "loaded = {'torch', 'transformers', 'ipywidgets', 'anywidget'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_picture_speaks_chinese_too(lab: Lab) -> None:
    work(lab)
    shot = snapshot_at(lab.log)
    english, chinese = render_svg(shot), render_svg(shot, lang="zh")
    assert "held" in english
    assert "占用" in chinese
    style = re.compile(r"<style>.*?</style>|<[^>]+>", re.DOTALL)
    words = re.sub(r"MiB|KV|token|[a-z]+:checkout", " ", style.sub(" ", chinese))
    names = {"global", "private", "architect", "backend", "frontend", "fork"}
    left = set(re.findall(r"[A-Za-z]{2,}", words)) - names - {"prompt", "checkout"}
    assert not {word for word in left if len(word) > 5}, left
    ElementTree.fromstring(chinese)
    with pytest.raises(BadInput, match="en and zh"):
        render_svg(shot, lang="de")


def test_block_counts_its_holders() -> None:
    assert Block(3, HELD, ("prompt", "backend")).refs == 2
