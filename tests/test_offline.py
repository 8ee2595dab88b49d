"""The dashboard in a real browser without JupyterLab: the exported page, and long or bad logs.

Skipped with a message where there is no Chromium, unless INMS_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shifted
from test_widgets import dry_lab
from toy import Toy, ToyModel

from inms_lab.books.events import Allocated, Copied, Freed, Released
from inms_lab.config import Config
from inms_lab.errors import StepInterrupted, TextTooLarge
from inms_lab.logs.log import Log
from inms_lab.model.forward import DryModel
from inms_lab.notebook.agent import Agent
from inms_lab.notebook.lab import Lab
from inms_lab.terminal.doctor import find_chromium
from inms_widgets import contexts_at, measures_at, snapshot_at
from inms_widgets.export import export_html
from inms_widgets.feed import Feed, Position
from inms_widgets.snapshot import CACHED, HELD
from inms_widgets.words import strings

if find_chromium() is None and os.environ.get("INMS_REQUIRE_BROWSER") != "1":
    pytest.skip("no Chromium here (inms-lab doctor says how to get one)", allow_module_level=True)

import browser

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import view as bench
from big_log import SIZE, BigLog

pytestmark = [pytest.mark.browser]
REQUIRED = os.environ.get("INMS_REQUIRE_BROWSER") == "1"
ROUND = {"width": 1280, "height": 1000}
HUB = "document.querySelector('.inms-dash').hub"
PROMPT, GROUP, PRIVATE = "mandate", "bulletin", "diary"
SECRET = "the secret reason"
EVENTS = {
    *("PoolOpened", "Registered", "Commanded", "Released", "Shared", "Allocated", "Copied"),
    *("Evicted", "Freed", "Stepped", "Published", "Aborted"),
}

# The state at the cursor, in words that Python has too.
STATE = """() => {
  const { hub } = document.querySelector(".inms-dash"), state = hub.state(), pools = {};
  for (const pool of state.pools.values()) {
    const one = pools[pool.name] = { held: {}, cached: [], free: pool.free };
    for (let b = 0; b < pool.high; b++) {
      if (pool.state(b) === "cached") one.cached.push(b);
      else if (pool.refs[b]) one.held[b] = pool.refs[b];
    }
  }
  const text = s => hub.fold.textOf(hub.fold.tokensOf(s, 0, s.count)).map(x => x[0]).join("");
  const table = s => s.blocks.map(b => [state.pool(s.pool).name, b]);
  const holders = state.seqs.map(seq => [seq.state, state.numTokens(seq),
    seq.segments.flatMap(table), seq.segments.map(text).join("")]);
  return { cursor: hub.cursor, pools, holders, row: state.row() };
}"""
# For every canvas that has a size: a number that depends on each of its pixels, 0 if it is blank.
PIXELS = """() => [...document.querySelectorAll(".inms-dash canvas:not([tabindex])")].filter(
  c => c.clientWidth).map(c => {
  const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
  let sum = 0;
  for (let i = 0; i < data.length; i++) sum = (sum * 31 + data[i]) % 1000003;
  return data.some(Boolean) ? sum + 1 : 0;
})"""
# What can be operated, is in sight, and is not one of a group through which arrow keys lead.
KINDS = "button, input, select, textarea, summary, a[href], [tabindex]"
CONTROLS = f"""() => [...document.querySelectorAll(".inms-dash :is({KINDS})")].filter(
  node => node.checkVisibility() && !node.disabled && !node.closest("[hidden]"))"""
NAMELESS = f"""() => ({CONTROLS})().filter(node => {{
  const role = node.getAttribute("role") || "", words = node.textContent.trim();
  const speaks = role || !node.matches("[tabindex]") || node.matches("pre, button, summary");
  return !(node.ariaLabel || node.title || node.labels?.length || words && speaks);
}}).map(node => node.outerHTML.slice(0, 120))"""


class Words(ToyModel):
    """The toy model with a larger vocabulary, of which it writes only private words."""

    stopped = False  # in its next step

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 1000

    def next_token(self, state: int) -> int:
        return 200 + super().next_token(state) % 800

    def forward(self, *args: Any) -> Any:
        if self.stopped:
            self.stopped = False
            raise StepInterrupted("stopped")
        return super().forward(*args)


def piece(token: int) -> bytes:
    """Whose words a token is can be read."""
    return f"{PROMPT if token < 100 else GROUP if token < 200 else PRIVATE}{token} ".encode()


def eventful() -> Log:
    """A run with all kinds of events, refusals, an interrupted step and an agent that failed."""
    model = Words()
    with Lab(model, config=Config(4, 4, 16, 400, 200, 200, 120)) as lab:
        lab.log.piece = piece
        lab.preload(list(range(30)), tools=list(range(40, 60)), progress=False)
        team = lab.group("checkout")
        architect, backend, frontend = team.agents("architect", "backend", "frontend")

        async def program(me: Agent) -> None:
            me.read([200 + len(me.name) + n for n in range(20)])
            await me.write(12)

        async def fails(me: Agent) -> None:
            await me.read([250] * 9)
            raise ValueError(SECRET)

        lab.start({architect: program, backend: program})
        lab.run_to(None)
        team.publish(list(range(100, 114)), by=architect)
        frontend.attach(team)
        lab.start({frontend: fails})
        lab.run_to(None)
        backend.fork().result().write(6).result()
        architect.rollback(58).result()
        architect.write(9).result()
        backend.close().result()
        for number in range(9):  # the pool is too small for them: some wait, some are put aside
            guest = lab.agent(f"guest{number}")
            guest.read([300 + number] * 40).result()
            if number % 3 == 1:
                guest.close().result()
        with pytest.raises(TextTooLarge):
            lab.agent("big").read([700] * 200).result()
        model.stopped = True
        with pytest.raises(StepInterrupted):
            lab.agent("late").read([410] * 12).result()
        lab.check()
        return lab.log.copy()


@pytest.fixture(scope="module")
def log() -> Log:
    return eventful()


class Tab:
    """A browser's tab; what goes wrong in it and what it asks for is kept."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.pages: dict[tuple[Any, ...], tuple[Log, str]] = {}  # exported already
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path | str) -> Tab:
        """Another page, until it is drawn."""
        self.errors.clear()
        self.requests.clear()
        self.page.set_viewport_size(ROUND)
        self.page.emulate_media(reduced_motion="null", forced_colors="null")
        self.page.goto(path.as_uri() if isinstance(path, Path) else path)
        return self

    def export(self, log: Log, **options: Any) -> Tab:
        """The exported page of a log, opened from disk."""
        path = self.folder / "run.html"
        path.write_text(self.html(log, **options), "utf-8")
        self.open(path)
        self.page.wait_for_function(f"() => {HUB} && !{HUB}.dirty")
        return self

    def html(self, log: Log, **options: Any) -> str:
        """What `export_html` writes. Once for a log: explaining all its decisions takes seconds."""
        key = id(log), len(log), *sorted(options.items())
        if key not in self.pages:
            path = export_html(log, self.folder / "first.html", **options)
            self.pages[key] = log, path.read_text("utf-8")  # the log too: its id stays its own
        return self.pages[key][1]

    def do(self, script: str, argument: Any = None) -> Any:
        """A script, and what it gives once the picture is drawn."""
        found = self.page.evaluate(script, argument)
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
        )
        return found

    def hub(self, script: str) -> Any:
        """A script in which `hub` is the dashboard's."""
        return self.do(f"() => {{ const hub = {HUB}; {script} }}")

    def press(self, *keys: str) -> int:
        """Keys, one after the other; gives where the cursor is then."""
        for key in keys:
            self.page.keyboard.press(key)
        return int(self.hub("return hub.cursor"))

    def pixels(self) -> list[int]:
        return list(self.do(PIXELS))


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser.chromium(viewport=ROUND) as page:
        yield Tab(page, tmp_path_factory.mktemp("offline"))


@pytest.fixture
def page(tab: Tab, log: Log) -> Iterator[Tab]:
    """The exported page of the eventful run, with all of its text."""
    yield tab.export(log, redact="nothing")
    assert tab.errors == []


def python_state(log: Log, index: int) -> dict[str, Any]:
    """The same from the pictures' functions in Python."""
    pools = {}
    for pool in snapshot_at(log, index).pools:
        pools[pool.pool_id] = {
            "held": {str(b.number): b.refs for b in pool.blocks if b.state == HELD},
            "cached": [b.number for b in pool.blocks if b.state == CACHED],
            "free": pool.num_free,
        }
    holders = []
    for context in contexts_at(log, index):
        table = [[span.pool_id, span.block] for span in context.spans if span.block >= 0]
        text = "".join(span.text for span in context.spans)
        holders.append([context.state, context.num_tokens, table, text])
    numbers = measures_at(log, index)
    row = [getattr(numbers, name) for name in numbers.__slots__]
    return {"cursor": index, "pools": pools, "holders": holders, "row": row}


def compressed(html: str) -> bytes:
    """What the page holds of the log."""
    found = re.search(r'id="log">([^<]*)<', html)
    assert found is not None
    return gzip.decompress(b64decode(found[1]))


# --- the exported page --------------------------------------------------------------------------


@pytest.mark.parametrize("redact", ["private", "all", "nothing"])
def test_the_exported_page_loads_nothing_and_shows_only_what_it_may(
    tab: Tab, log: Log, redact: str
) -> None:
    """No request, no error, under 2 MB; private words are neither in the file nor on the page."""
    assert {type(event).__name__ for event in log.events} == EVENTS
    assert {"planned", "no room"} <= {decided.outcome for decided in log.decisions}
    options = {} if redact == "private" else {"redact": redact}  # "private" is what one gets
    tab.export(log, **options)
    tab.page.locator(".inms-table summary").click()
    tab.hub(
        "for (const q of hub.fold.end.seqs) hub.agent = q.id, hub.dirty = true, hub.draw(0)"
    )  # opens each text
    tab.hub(
        "hub.agent = null; hub.seek(hub.fold.length); hub.setPin({ pool: 'private', block: 0 })"
    )
    tab.page.wait_for_timeout(600)
    assert tab.errors == []
    assert tab.requests == [(tab.folder / "run.html").as_uri()]
    html = (tab.folder / "run.html").read_text("utf-8")
    assert len(html.encode()) < 2_000_000
    readable = {"private": {PROMPT, GROUP}, "all": set(), "nothing": {PROMPT, GROUP, PRIVATE}}
    shown = tab.page.content() + tab.page.locator("body").inner_text()
    inside = compressed(html).decode("utf-8", "replace")
    plain = re.sub(r'(?s)<script.*?</script>|<script type="application.*?</script>', "", shown)
    for word in (PROMPT, GROUP, PRIVATE):
        # the feed gives a token's text in base64
        coded = {
            b64encode(piece(token)).decode()
            for token in range(1000)
            if word.encode() in piece(token)
        }
        in_file = word in html or word in inside or any(text in inside for text in coded)
        assert in_file == (word in readable[redact]), word
        assert (re.search(rf"{word}\d", plain) is not None) == (word in readable[redact]), word
    hidden = redact != "nothing"
    assert (SECRET in plain) != hidden
    assert (SECRET in inside) != hidden
    assert ("\u2592" in tab.page.locator(".inms-dash").inner_text()) == hidden
    assert "ValueError" in plain


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_key_of_the_string_table_is_left_on_the_page(tab: Tab, log: Log, lang: str) -> None:
    tab.export(log, redact="nothing", lang=lang)
    tab.page.locator(".inms-table summary").click()
    missing = tab.hub("""  // what is written on a canvas too
      const missing = new Set();
      hub.strings = new Proxy(hub.strings, {
        get(table, key) { if (!(key in table)) missing.add(key); return table[key]; },
      });
      for (let at = 0; at <= hub.fold.length; at += 3) {
        hub.seek(at); hub.draw(0);
        for (const part of hub.parts) part.redraw?.();
      }
      hub.setPin({ pool: 'global', block: 0 }); hub.jump('refuse'); hub.draw(0);
      return [...missing];
    """)
    assert [key for key in missing if not key.startswith("detail_w_")] == []  # asked whether it is
    found = tab.do("""() => {
      const root = document.querySelector(".inms-dash"), out = [];
      const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
      for (let node; (node = walk.nextNode());) out.push(node.data);
      for (const node of document.querySelectorAll(".inms-dash *"))
        for (const name of ["aria-label", "title", "aria-valuetext", "placeholder", "alt"])
          out.push(node.getAttribute(name) || "");
      return out;
    }""")
    parts = "map|bar|time|step|detail|table|agent|check|export|settings"
    raw = [text for text in found if re.search(rf"\b({parts})_[A-Za-z_]+", text)]
    assert not [text for text in raw if "step_" not in text or not text.startswith("def ")], raw
    assert not [text for text in found if re.search(r"\{\d\}|\bundefined\b|\bNaN\b", text)]
    table = {row[lang == "en"] for key, row in strings().items() if "\n" not in row[0]}
    foreign = {text for text in table if re.search(r"[\u4e00-\u9fff]", text)}
    assert lang == "zh" or not foreign & {text.strip() for text in found}


def test_a_page_for_a_projector_in_chinese_fills_the_page_and_its_signs_can_be_read(
    tab: Tab, log: Log
) -> None:
    """Chinese glyphs are really drawn: they differ from each other and from a missing glyph."""
    tab.export(log, lang="zh", projector=True)
    for width in (1280, 1920):
        tab.page.set_viewport_size({"width": width, "height": 1000})
        tab.page.wait_for_timeout(300)
        box = tab.page.locator(".inms-dash").bounding_box()
        assert box is not None
        assert box["width"] > 0.95 * width
        assert not tab.do("() => document.documentElement.scrollWidth > innerWidth")
        assert (
            tab.do("() => getComputedStyle(document.querySelector('.inms-dash')).fontSize")
            == "17px"
        )
        assert tab.page.locator(".inms-dash").get_attribute("lang") == "zh-Hans"
        assert not browser_clashes(tab)
        tab.page.screenshot(path=tab.folder / f"zh_projector_{width}.png", full_page=True)
    assert tab.errors == []
    fonts = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, text=True, check=False)
    if not fonts.stdout.strip():
        assert not REQUIRED, "no Chinese font here: install fonts-wqy-zenhei"
        pytest.skip("no Chinese font here")
    drawn = tab.do("""() => ["\u5b9e", "\u9a8c", "\u5757", "\ue000"].map(sign => {
      const canvas = new OffscreenCanvas(60, 60), c = canvas.getContext("2d");
      c.font = `40px ${getComputedStyle(document.querySelector(".inms-dash")).fontFamily}`;
      c.fillText(sign, 5, 45);
      return c.getImageData(0, 0, 60, 60).data.join();
    })""")
    assert len(set(drawn)) == 4


def browser_clashes(tab: Tab) -> list[str]:
    """Words that leave their frame or are too small."""
    return list(tab.page.evaluate(browser.CLASHES))


@pytest.mark.parametrize("width", [1280, 1920])
def test_no_words_leave_their_frame(page: Tab, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 1000})
    page.hub("hub.seek(200); hub.setPin({ pool: 'private', block: 3 })")
    page.page.wait_for_timeout(300)
    assert browser_clashes(page) == []
    page.page.screenshot(path=page.folder / f"page_{width}.png", full_page=True)


# --- the scrubber -------------------------------------------------------------------------------


def test_the_first_drag_on_the_timeline_moves_the_cursor_and_the_pictures(page: Tab) -> None:
    """rerun#12687: the scrubber is dead until something else is clicked."""
    strip = page.page.locator(".inms-timeline canvas").nth(1)
    box = strip.bounding_box()
    assert box is not None
    before, picture = page.hub("return hub.cursor"), page.pixels()
    page.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.page.mouse.down()
    middle = page.hub("return hub.cursor")
    page.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 45, steps=4)
    late = page.hub("return hub.cursor")
    page.page.mouse.up()
    assert len({before, middle, late}) == 3
    assert middle < late
    assert page.pixels() != picture
    assert f"{late:,}" in page.page.locator(".inms-bar-now strong").inner_text()
    page.page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
    assert page.hub("return hub.cursor") == late, "it was let go"


def test_the_state_at_the_cursor_is_pythons(page: Tab, log: Log) -> None:
    rng = random.Random(0)
    for index in [0, len(log), *rng.choices(range(len(log)), k=25)]:
        page.hub(f"hub.seek({index})")
        shown = page.do(STATE)
        want = python_state(log, index)
        assert shown["pools"] == want["pools"], index
        assert shown["holders"] == want["holders"], index
        assert shown["row"] == want["row"], index


def test_the_playhead_stays_inside_the_zoomed_window(page: Tab) -> None:
    """rerun#11260: in follow mode the playhead leaves the window."""
    page.hub("hub.seek(20)")
    page.page.locator(".inms-timeline input[type=range]").focus()
    page.press("+", "+", "+")
    inside = """() => {
      const head = document.querySelector(".inms-time-box > i").getBoundingClientRect();
      const strip = document.querySelectorAll(".inms-timeline canvas")[1].getBoundingClientRect();
      return head.left >= strip.left + 60 && head.right <= strip.right;
    }"""
    assert page.page.locator(".inms-timeline h3 .inms-dim").inner_text(), "it is zoomed"
    for index in (20, 150, 280, 5, 309):
        page.hub(f"hub.seek({index})")
        assert page.do(inside), index
    page.hub("hub.seek(10); hub.setMode('follow')")
    assert page.do(inside)


# --- the keyboard -------------------------------------------------------------------------------


def test_everything_can_be_reached_by_tab_and_has_a_name(page: Tab) -> None:
    page.hub("hub.jump('copy'); hub.setPin({ pool: 'global', block: 0 })")
    assert page.do(NAMELESS) == []
    wanted = page.do(f"""() => {{
      window.wanted = new Set(({CONTROLS})().filter(node => node.tabIndex >= 0));
      window.roving = ({CONTROLS})().filter(node => node.tabIndex < 0);
      const root = document.querySelector(".inms-dash");
      root.addEventListener("focusin", event => wanted.delete(event.target));
      return wanted.size;
    }}""")
    assert wanted > 40
    for _ in range(wanted + 20):
        page.page.keyboard.press("Tab")
    assert page.do("() => [...wanted].map(node => node.outerHTML.slice(0, 120))") == []
    alone = page.do("""() => roving.filter(node => !node.closest("[role=group], ol, ul")
      ?.querySelector("[tabindex='0']")).map(node => node.outerHTML.slice(0, 120))""")
    assert alone == [], "arrow keys lead to them from a neighbour"


def test_the_keyboard_alone_steps_jumps_plays_and_pins(page: Tab, log: Log) -> None:
    said = page.page.locator(".inms-say")
    page.press("Tab")
    assert page.do("() => document.activeElement.className").startswith("inms-dash")
    assert page.press("Home") == 0
    assert page.press("ArrowRight", "ArrowRight", "ArrowLeft") == 1
    assert page.press("End") == len(log)
    names = [type(event).__name__ for event in log.events]
    page.press("Home")
    assert names[page.press("c") - 1] == "Copied"
    first = page.press("e")
    assert names[first - 1] == "Evicted"
    assert page.press("e") > first
    assert page.press("Shift+E") == first
    page.press("r")
    refusal = page.hub("return hub.fold.decisions[hub.decision].outcome")
    assert refusal in ("no room", "refused")

    page.press("Home", "]", "]")
    number = page.hub("return hub.decision")
    page.press("[")
    assert page.hub("return hub.decision") == number - 1
    steps = []
    for _ in range(7):
        page.press("j")
        steps.append(page.do(
            "() => [...document.querySelectorAll('.s-checks > li')]"
            ".findIndex(li => li.querySelector('[aria-current=step]'))"
        ))  # fmt: skip
    assert steps == list(range(7))
    page.press("k")
    assert page.page.locator(".s-checks [aria-current=step]").inner_text().startswith("6")

    page.hub("document.querySelector('.inms-dash').focus()")
    at = page.press("Home", " ")
    page.page.wait_for_function(f"() => {HUB}.cursor > {at} + 2")
    page.press(" ")
    stopped = page.hub("return hub.cursor")
    page.page.wait_for_timeout(400)
    assert page.hub("return hub.cursor") == stopped
    assert page.hub("return hub.mode") == "paused"

    page.hub("hub.seek(200)")
    for _ in range(200):  # to the map, by Tab
        page.page.keyboard.press("Tab")
        if page.page.evaluate("() => document.activeElement.matches('.inms-map canvas')"):
            break
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert said.inner_text(), "the block under the keys is told"
    page.press("Enter")
    pin = page.hub("return hub.pin")
    assert pin["pool"] == "global"
    assert said.inner_text() == f"Pinned block {pin['block']}"
    page.press("Escape")
    assert page.hub("return hub.pin") is None


def test_the_keyboard_lives_on_when_what_had_the_focus_goes(page: Tab) -> None:
    """Keys reach the dashboard after its part has hidden, disabled or replaced the focused node."""
    inside = "() => document.querySelector('.inms-dash').contains(document.activeElement)"
    page.hub("hub.seek(0); hub.root.focus()")
    page.press("]", "j", "Home")
    assert page.do(inside)
    assert page.press("ArrowRight") == 1, "keys still arrive"
    page.hub("hub.setPin({ pool: 'private', block: 0 })")
    page.page.get_by_role("button", name="Unpin").press("Enter")
    page.hub("return 0")
    assert page.hub("return hub.pin") is None
    assert page.do(inside)
    page.hub("hub.selectDecision(hub.fold.decisions.length - 2)")
    page.page.locator(".inms-decision button", has_text="next").first.press("Enter")
    page.hub("return 0")
    assert page.page.locator(".inms-decision [data-k='1']").is_disabled()
    assert page.do(inside)


def test_a_question_mark_opens_the_keys_and_escape_closes_them(page: Tab) -> None:
    keys = page.page.locator(".inms-bar dl")
    page.hub("hub.setPin({ pool: 'private', block: 0 }); hub.root.focus()")
    page.press("?")
    assert keys.is_visible()
    assert "j k" in keys.inner_text()
    page.press("Escape")
    assert not keys.is_visible()
    assert page.hub("return hub.pin") is not None, "Escape closed the list, no more"
    page.press("Escape")
    assert page.hub("return hub.pin") is None


def test_a_jump_that_finds_nothing_says_so(page: Tab) -> None:
    page.hub("hub.seek(hub.fold.length); hub.root.focus()")
    for key, words in (("c", "no further copy-on-write"), ("r", "no further refusal")):
        page.press(key)
        assert page.page.locator(".inms-bar-said").inner_text() == words
        assert page.page.locator(".inms-say").inner_text() == words


def test_enter_goes_to_a_block_and_a_bare_number_is_asked_for_its_pool(page: Tab) -> None:
    box = page.page.get_by_label("Go to block").first
    box.fill("private:1")
    box.press("Enter")
    assert page.hub("return hub.pin") == {"pool": "private", "block": 1}
    box.fill("7")
    box.press("Enter")
    page.hub("return 0")
    assert "pool:block" in page.page.locator(".detail-body [role=alert]").inner_text()


# --- blocks and agents --------------------------------------------------------------------------


def test_a_click_on_a_block_pins_it_and_shows_its_tokens_holders_and_history(
    page: Tab, log: Log
) -> None:
    """Held, cached and free blocks alike."""
    page.hub("hub.seek(200)")
    private = next(p for p in snapshot_at(log, 200).pools if p.pool_id == "private")
    blocks = {block.number: block for block in private.blocks}
    by_state = {block.state: number for number, block in blocks.items()}
    assert {HELD, CACHED} <= set(by_state)
    page.page.locator(".inms-map").scroll_into_view_if_needed()
    for state, number in by_state.items():
        spot = page.do(
            f"n => {HUB}.parts.find(part => part.where).where('private', n)",
            number,
        )
        page.page.mouse.click(spot["x"], spot["y"])
        assert page.hub("return hub.pin") == {"pool": "private", "block": number}
        page.page.wait_for_function(f"() => !{HUB}.dirty")
        detail = page.page.locator(".detail-body").inner_text()
        assert f"private:{number}" in detail
        if state == HELD:
            holder = blocks[number].holders[0].partition(" (")[0]
            assert holder in page.page.locator(".detail-holders").inner_text()
        if state != "free":
            assert PRIVATE in page.page.locator(".detail-text").inner_text()
            assert re.search("[0-9a-f]{32}", page.page.locator(".detail-chain").inner_text())
        assert page.page.locator(".detail-history li button").count() >= 2


def test_a_block_out_of_range_is_a_message(page: Tab) -> None:
    for pin in ("{ pool: 'private', block: 99999 }", "{ pool: 'nowhere', block: 1 }"):
        page.hub(f"hub.setPin({pin})")
        assert page.page.locator(".detail-body [role=alert]").inner_text()


def test_a_click_on_a_span_lights_its_blocks(page: Tab, log: Log) -> None:
    page.hub("hub.seek(200)")
    (context,) = [c for c in contexts_at(log, 200) if c.name == "architect"]
    card = page.page.locator(".inms-agents li", has_text="architect").first
    card.locator(".a-bar [data-tier=global]").first.click()
    lit = set(page.hub("return [...hub.lit]"))
    assert lit
    assert lit <= {f"{span.pool_id}:{span.block}" for span in context.spans}
    assert page.hub("return hub.pin.pool") == "global"


def test_a_failed_agent_shows_its_traceback(page: Tab) -> None:
    page.hub("hub.seek(hub.fold.length)")
    error = page.page.locator(".inms-agents .a-error")
    error.locator("summary").click()
    assert f"ValueError: {SECRET}" in error.locator("pre").inner_text()
    assert "Traceback" in error.locator("pre").inner_text()


def test_the_stepper_names_blocks_as_the_pool_does(page: Tab, log: Log) -> None:
    found = page.hub("""
      const all = [...hub.fold.explained.values()], one = e => e.parts.find(
        p => p.outcome === "computed" && p.num_blocks === 1 && p.segment > 0 && p.blocks.length);
      const e = all.find(one);
      hub.selectDecision(e.number);
      return one(e);
    """)
    words = page.page.locator(".inms-decision .s-part").all_inner_texts()
    place = f"segment {found['segment']}, its block {found['first_block']}"
    assert f"{found['pool_id']}:{found['blocks'][0]} ({place})" in "\n".join(words)


def test_the_stepper_shows_what_is_led_up_to_or_says_that_it_was_before(page: Tab) -> None:
    title, gone = page.page.locator(".inms-decision h3"), "last decision before this moment"
    led = page.hub("""
      const { decisions, length } = hub.fold;
      for (let i = 0; i < length; i++) {
        const e = hub.fold.event(i), d = decisions.find(x => x?.at > i);
        if (!d || !/Copied|Freed|Commanded/.test(e.name) || e.seq_id !== d.seq) continue;
        if (decisions.some(x => x?.at <= i && x.stop > i)) continue;
        hub.seek(i + 1);
        return d.number;
      }
    """)
    assert title.inner_text().startswith(f"decision {led + 1} of")
    last = page.hub("hub.seek(hub.fold.length); return hub.fold.decisions.at(-1)")
    if last["stop"] < page.hub("return hub.cursor"):
        assert title.inner_text().startswith(gone)
    page.hub("hub.selectDecision(3)")
    assert title.inner_text().startswith("decision 4 of")


def test_checks_that_a_page_left_out_are_told_apart(page: Tab) -> None:
    count = page.hub("""
      hub.fold.explained.delete(0); hub.selectDecision(0); return hub.fold.explained.size;
    """)
    words = page.page.locator(".inms-decision").inner_text()
    assert f"the checks of the newest {count} decisions only" in words


def test_numbers_of_the_timeline_are_explained_and_one_is_singular(page: Tab) -> None:
    page.hub("hub.seek(hub.fold.length)")
    for name in ("unused", "holes", "stranded", "hits", "alone"):
        row = strings()[f"time_about_{name}"][0]
        assert page.page.locator(f".inms-key-{name}").get_attribute("title") == row
        assert page.page.locator(f".inms-key-{name}").get_attribute("aria-description") == row
    words = {
        "['time_blocks', 1]": "1 block",
        "['time_blocks', 21]": "21 blocks",
        "['agent_size', 1, 1]": "1 token \u00b7 1 block",
        "['bar_steps', 1]": "1 step/s",
        "['bar_steps', '0.1']": "0.1 steps/s",
        "['map_never', 1]": "+1 free block never used",
        "['step_more_tokens', 1]": "and 1 more token",
    }
    for call, text in words.items():
        assert page.hub(f"return hub.t(...{call})") == text


def test_a_plain_wheel_over_the_timeline_scrolls_the_page(page: Tab) -> None:
    strip = page.page.locator(".inms-timeline canvas").nth(1)
    strip.hover()
    zoomed = page.page.locator(".inms-timeline h3 .inms-dim")
    page.page.mouse.wheel(0, -200)
    page.page.wait_for_timeout(100)
    assert not zoomed.inner_text()
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -200)
    page.page.keyboard.up("Control")
    page.page.wait_for_timeout(100)
    assert zoomed.inner_text()
    assert "Ctrl" in (strip.get_attribute("title") or "")


@pytest.mark.parametrize("width", [520, 1280])
def test_long_names_and_narrow_pages_stay_in_their_frame(tab: Tab, width: int) -> None:
    with dry_lab() as lab:
        for name in ("n" * 300, "twin", "twin"):
            agent = lab.agent(name)
            agent.read([3] * 20).result()
            agent.close().result()
        gone = len(lab.log)
        lab.agent("once").read([4] * 40).result()
        log = lab.log.copy()
    tab.export(log, redact="nothing")
    tab.page.set_viewport_size({"width": width, "height": 1000})
    tab.hub("hub.seek(hub.fold.length - 1); hub.agent = 0; hub.change()")
    tab.page.wait_for_timeout(300)
    assert browser_clashes(tab) == []
    assert not tab.do("() => document.documentElement.scrollWidth > innerWidth")
    assert tab.hub("return [0, 1, 2, 3].map(id => hub.nameOf(id)).slice(1)") == [
        "twin #1",
        "twin #2",
        "once",
    ]
    tab.page.screenshot(path=tab.folder / f"names_{width}.png", full_page=True)
    tab.hub(f"hub.seek({gone})")
    assert tab.page.locator(".map-chips").inner_text() == strings()["map_nobody_now"][0]
    assert tab.errors == []


def test_an_empty_log_is_at_its_end_and_does_not_loop(tab: Tab) -> None:
    tab.export(Log())
    tab.hub("hub.root.focus()")
    assert tab.page.locator(".inms-bar-badge").inner_text() == "PAUSED at 0"
    tab.page.locator(".inms-bar button", has_text="Loop").click()
    tab.page.wait_for_timeout(200)
    assert tab.hub("return hub.mode") == "paused"
    tab.hub("hub.setMode('follow')")
    assert tab.page.locator(".inms-bar-badge").inner_text() == strings()["bar_at_end"][0]
    assert tab.page.locator(".inms-decision h3").inner_text() == "This log holds no decisions."
    assert tab.errors == []


# --- fragments ----------------------------------------------------------------------------------


@pytest.fixture
def moved(tab: Tab) -> Iterator[Tab]:
    """The exported page of a run with fragments, just after the first of them was mounted."""
    log = shifted.team_run(shifted.MEASURED).log
    log.piece = piece
    tab.export(log, redact="nothing")
    first = shifted.shifted(log)[0]
    tab.hub(f"hub.selectDecision(hub.fold.decisions.find(d => d.stop > {first}).number)")
    yield tab
    assert tab.errors == []


UNTORN = """torn => { // the map without the mark, or with it again
  const { hub } = document.querySelector(".inms-dash");
  for (const pool of hub.state().pools.values()) {
    pool.kept ||= pool.shifted.slice();
    if (torn) pool.shifted.set(pool.kept); else pool.shifted.fill(0);
  }
  for (const part of hub.parts) part.redraw?.();
}"""


def test_a_block_that_somebody_has_as_a_fragment_is_told_apart_without_colour(moved: Tab) -> None:
    """A torn edge from 4 pixels on, a legend, words; without the mark it is another picture."""
    assert strings()["map_l_shifted"][0] in moved.page.locator(".map-legend").inner_text()
    moved.page.wait_for_timeout(700)  # flashes are over
    for _ in range(5):
        torn = moved.pixels()
        moved.do(UNTORN, False)
        assert moved.pixels() != torn
        moved.do(UNTORN, True)
        assert moved.pixels() == torn
        moved.page.get_by_role("button", name="Smaller blocks").click()
    for pool, block, shift in (("group:team", 1, "backend +5"), ("global", 0, "")):
        moved.hub(f"hub.setPin({{ pool: '{pool}', block: {block} }})")
        line = moved.page.locator(".map-line").inner_text()
        assert "backend" in line
        assert shift in line
        assert ("+" in line) == bool(shift)


def test_each_holder_of_a_block_says_where_it_has_it(moved: Tab) -> None:
    moved.hub("hub.setPin({ pool: 'group:team', block: 2 })")
    holders = moved.page.locator(".detail-holders button").all_inner_texts()
    said = {words.split(" \u00b7 ")[0]: words.split(" \u00b7 ")[-1] for words in holders}
    assert said == {"team/1": "in place", "backend": "shift +5", "exact": "in place"}
    facts = moved.page.locator(".detail-body dl").inner_text()
    assert "encoded for position\n14" in facts  # the prompt's 6 tokens, and two blocks
    assert "at a shift" in moved.page.locator(".detail-history").inner_text()
    assert re.search("[0-9a-f]{32}", moved.page.locator(".detail-chain").inner_text())
    card = moved.page.locator(".inms-agents li", has_text="backend").first
    titles = card.locator(".a-shifted").evaluate_all("nodes => nodes.map(node => node.title)")
    assert titles
    assert all("shift +5" in title for title in titles)


def test_a_share_at_a_shift_says_whose_it_is_what_it_saves_and_what_it_costs(moved: Tab) -> None:
    words = moved.page.locator(".inms-decision").inner_text()
    for part in (
        "shared at a shift",
        "a fragment, shift +5",
        "KV of team/1 (record), encoded for position 6, used at position 11",
        "KL 0.020, agreement 0.940",
        "saves 10 bytes and 15.0 ms, costs 0.6 ms",
        "\u25bc saved",
    ):
        assert part in words, part
    moved.hub("hub.root.focus()")
    moved.press(*"jjjjj")
    assert "at a shift of +5" in moved.page.locator(".s-checks li").nth(4).inner_text()


def test_shares_at_a_shift_are_filtered_jumped_to_and_counted(moved: Tab) -> None:
    numbers = moved.hub("return hub.fold.decisions.filter(d => d.parts.some("
                        "p => p[3] === 'shared at a shift')).map(d => d.number)")  # fmt: skip
    assert len(numbers) > 2
    moved.page.get_by_label("kind of decision").select_option("shared at a shift")
    moved.page.locator(".inms-decision button", has_text="the first").click()
    assert moved.hub("return hub.decision") == numbers[0]
    moved.page.locator(".inms-decision button", has_text="the next").last.click()
    assert moved.hub("return hub.decision") == numbers[1]
    log = shifted.team_run().log
    want = [index + 1 for index in shifted.shifted(log)]
    moved.hub("hub.seek(0); hub.root.focus()")
    assert [moved.press("s") for _ in want] == want
    assert moved.press("Shift+S") == want[-2]
    moved.page.get_by_role("button", name="next: share at a shift").click()
    assert moved.hub("return hub.cursor") == want[-1]
    moved.hub("hub.jump('shift')")
    assert moved.page.locator(".inms-bar-said").inner_text() == "no further share at a shift"
    moved.hub("hub.seek(hub.fold.length)")
    blocks = measures_at(log).shifted
    assert f"({blocks} blocks)" in moved.page.locator(".inms-key-shifted").inner_text()
    moved.page.locator(".inms-table summary").click()
    moved.hub(f"hub.seek({want[0]})")
    moved.page.wait_for_timeout(700)
    row = moved.page.locator(".inms-table tr", has_text="backend").first.inner_text()
    assert row.split("\t")[4:7] == ["7", "5", "3"]  # blocks, shared, at a shift


def test_a_superseded_record_is_told_in_words_as_long_as_somebody_reads_it(moved: Tab) -> None:
    log = shifted.team_run().log
    (at,) = [i for i, e in enumerate(log.events) if isinstance(e, Released) and e.replaces >= 0]
    timeline = moved.page.locator(".inms-timeline")
    moved.hub(f"hub.setPin(null); hub.seek({at})")
    assert "instead of" not in timeline.inner_text()
    moved.hub(f"hub.seek({at + 1})")
    assert "team/1 v2 holds instead of team/1, which is still read by backend" in (
        timeline.inner_text()
    )
    detail = moved.page.locator(".detail-body").inner_text()
    assert "team/1 v2 released to team; team/1 holds no longer" in detail
    moved.hub("hub.seek(hub.fold.length)")
    assert "instead of team/1, which nobody reads" in timeline.inner_text()


def test_what_is_new_is_spoken_with_shares_at_a_shift(kit: tuple[Tab, Path]) -> None:
    tab, _ = kit
    log = shifted.team_run().log
    opened(kit, log, most=shifted.shifted(log)[0])
    tab.page.wait_for_timeout(2300)
    tab.do("() => { for (const packed of bench.rest) bench.push(packed); bench.hub.received(); }")
    tab.page.wait_for_timeout(2300)
    assert re.search(r"[1-9]\d* shared at a shift", tab.page.locator(".inms-say").inner_text())


# --- what a page goes through -------------------------------------------------------------------


def test_calm_motion_and_forced_colours(tab: Tab, log: Log) -> None:
    tab.export(log)
    tab.page.emulate_media(reduced_motion="reduce", forced_colors="active")
    tab.page.reload()
    tab.page.wait_for_function(f"() => {HUB} && !{HUB}.dirty")
    assert tab.hub("return hub.still") is True
    for kind in ("copy", "evict", "share"):
        tab.hub(f"hub.seek(0); hub.jump('{kind}'); hub.step(1); hub.step(-1)")
    assert all(tab.pixels())
    tab.page.screenshot(path=tab.folder / "forced_colours.png", full_page=True)
    assert tab.errors == []


def test_a_canvas_that_was_out_of_sight_is_not_blank(page: Tab) -> None:
    """jupyterlab#17815: a canvas is blank after scrolling away and back."""
    page.hub("hub.seek(150)")
    page.page.set_viewport_size({"width": 1280, "height": 500})
    page.page.wait_for_timeout(200)
    want = page.pixels()
    assert all(want)
    page.do("() => scrollTo(0, 1e6)")
    page.page.wait_for_timeout(200)
    page.do("""() => { for (const c of document.querySelectorAll(".inms-dash canvas")) {
      const { top, bottom } = c.getBoundingClientRect();
      if (bottom < 0 || top > innerHeight) c.getContext("2d").reset(); // the browser forgot it
    } }""")
    assert not all(page.pixels())
    for y in range(0, 3000, 300):
        page.do("y => scrollTo(0, y)", y)
        page.page.wait_for_timeout(60)
    assert page.pixels() == want
    page.do("() => { document.querySelector('.inms-dash').style.display = 'none' }")
    page.hub("hub.seek(240)")
    page.page.wait_for_timeout(100)
    page.do("() => { document.querySelector('.inms-dash').style.display = '' }")
    page.page.wait_for_timeout(200)
    back = page.pixels()
    assert all(back)
    page.hub("hub.seek(150)")
    page.hub("hub.seek(240)")
    page.page.wait_for_timeout(1000)  # flashes are over
    assert page.pixels() == back


def test_colours_are_looked_up(page: Tab) -> None:
    """dask/distributed#8763: colours recomputed hundreds of times a second."""
    count = page.hub("""
      const original = window.getComputedStyle, style = CSSStyleDeclaration.prototype;
      const read = style.getPropertyValue;
      let n = 0;
      hub.seek(200); hub.draw(0);
      window.getComputedStyle = (...all) => { n++; return original(...all); };
      style.getPropertyValue = function (name) { n++; return read.call(this, name); };
      for (let i = 0; i < 20; i++) { hub.seek(200 + i % 2); hub.dirty = true; hub.draw(0); }
      window.getComputedStyle = original;
      style.getPropertyValue = read;
      return n;
    """)
    assert count == 0


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[:400] + chr(ord(text[400]) ^ 1) + text[401:],
        lambda text: "*" + text[1:],
        lambda text: "",
        lambda text: b64encode(gzip.compress(b"\x05\0\0\0{}{}{")).decode(),
    ],
    ids=["cut", "flipped", "no base64", "empty", "no log"],
)
def test_bad_data_in_the_page_is_a_message(tab: Tab, log: Log, harm: Any) -> None:
    path, whole = tab.folder / "bad.html", tab.html(log)
    text = re.search(r'id="log">([^<]*)<', whole)[1]  # type: ignore[index]
    path.write_text(whole.replace(text, harm(text)), "utf-8")
    tab.open(path)
    message = tab.page.locator(".inms-message:visible")
    message.wait_for()
    assert strings()["unreadable"][0] in message.inner_text()
    assert tab.errors == []


# --- sizes --------------------------------------------------------------------------------------


@pytest.fixture
def kit(tab: Tab, tmp_path: Path) -> Iterator[tuple[Tab, Path]]:
    """A page that opens what lies in a folder: `bench` of benchmarks/view.py."""
    with bench.served(tmp_path) as address:
        yield tab.open(f"{address}/kit.html"), tmp_path
        assert tab.errors == []
        tab.page.goto("about:blank")


def opened(
    kit: tuple[Tab, Path], log: Log, most: int | None = None, at: Position | None = None
) -> Any:
    tab, folder = kit
    bench.write(folder / "log", Feed(log), at or Position(), most)
    return tab.do("() => bench.open('log')")


def test_after_1000_forks_and_frees_the_view_equals_the_fold(kit: tuple[Tab, Path]) -> None:
    """ray#9229: create and delete in a loop shows more than exist, until a refresh."""
    toy = Toy("inms", compare=False, blocks=(8, 8, 64))
    toy.prompt([1, 2, 3, 4] * 2)
    parent = toy.agent("parent")
    toy.do(parent, "append", [1, 2, 3, 4, 1])
    for number in range(1000):
        child = toy.do(parent, "fork")
        if number % 10 == 0:
            toy.do(child, "append", [2, 3])
        toy.do(child, "close")
    tab, _ = kit
    opened(kit, toy.log, 300)
    tab.do("""async () => { for (const packed of bench.rest) {
      bench.push(packed); bench.hub.received();
      await new Promise(requestAnimationFrame);
    } }""")
    assert tab.hub("return hub.cursor") == len(toy.log)
    tab.page.wait_for_timeout(500)  # the last picture is in time
    shown = tab.do(STATE)
    assert {
        name: {int(b): n for b, n in pool["held"].items()} for name, pool in shown["pools"].items()
    } == {name: dict(pool.refs) for name, pool in toy.ledger.pools.items()}
    assert shown["row"] == python_state(toy.log, len(toy.log))["row"]
    live = sum(seq.is_live for seq in toy.ledger.sequences.values())
    assert tab.page.locator(".map-chip").count() == live
    assert tab.page.locator(".inms-agents li:not(.a-ended)").count() == live


@pytest.mark.slow
def test_a_million_events_open_and_the_last_can_be_reached(kit: tuple[Tab, Path]) -> None:
    """pytorch#158364: the page freezes, the last event cannot be reached, totals above the card."""
    big, tab = BigLog(100_000), kit[0]
    log = big.grow(1_000_000)
    took = opened(kit, log)
    assert took["open"] < 60_000
    held = 0
    for event in log.events:
        if isinstance(event, (Allocated, Freed)) and event.pool_id == "private":
            held += len(event.blocks) * (1 if isinstance(event, Allocated) else -1)
    row = tab.hub(
        "hub.seek(1000); hub.draw(0); hub.seek(hub.fold.length); return hub.state().row()"
    )
    assert tab.hub("return hub.cursor") == len(log) == 1_000_000
    totals = tab.hub(
        "return [...hub.state().pools.values()].map(p => [p.held, p.cached, p.free, p.count])"
    )
    cached = totals[1][1]  # a copied block's source was written, so its content is kept
    assert totals == [[32, 0, 32, 64], [held, cached, 100_000 - held - cached, 100_000]]
    assert cached <= sum(isinstance(event, Copied) for event in log.events)
    assert row[2:5] == [held + 32, cached, 100_000 - held - cached + 32]
    slowest = tab.do("""async () => {
      let most = 0;
      for (const at of [1, 999999, 500000, 12345, 777777]) {
        const start = performance.now();
        bench.hub.seek(at); bench.now();
        most = Math.max(most, performance.now() - start);
      }
      return most;
    }""")
    assert slowest < 5000


@pytest.mark.parametrize("tokens", [512, 8192])
def test_a_long_context_shows_quickly(tab: Tab, tokens: int) -> None:
    """bertviz#82: at 512 tokens the view never loads."""
    with dry_lab(num_blocks=1200, context=9000) as lab:
        lab.log.piece = lambda token: b"word%d " % token
        lab.agent("reader").read([n % 90 for n in range(tokens)]).result()
        log = lab.log.copy()
    tab.export(log, redact="nothing")
    start = tab.do("() => performance.now()")
    assert start < 15_000
    took = tab.hub(
        "const start = performance.now(); hub.agent = 0; hub.seek(hub.fold.length);"
        "hub.draw(0); return performance.now() - start"
    )
    assert took < 2000
    text = tab.page.locator(".a-text").first
    assert "word7" in text.inner_text()
    assert tab.page.locator(".a-text span").count() < 1000
    assert tab.errors == []


def test_large_pools_have_levels_of_detail_and_any_step_can_be_gone_to(
    kit: tuple[Tab, Path],
) -> None:
    """OnlinePythonTutor#225: big structures cannot be read, and there is no jump to step n."""
    tab = kit[0]
    opened(kit, BigLog(40_000).fill())
    assert tab.page.locator(".inms-map canvas").first.bounding_box()["height"] < 700  # type: ignore[index]
    shots = [tab.pixels()]
    for label in ("Larger blocks", "Larger blocks"):
        for _ in range(2):
            tab.page.get_by_role("button", name=label).click()
        tab.page.wait_for_timeout(100)
        shots.append(tab.pixels())
    assert len({tuple(pixels) for pixels in shots}) == 3
    assert all(all(pixels) for pixels in shots)
    box = tab.page.get_by_role("spinbutton", name="go to event number")
    box.fill("1234")
    box.press("Enter")
    assert tab.hub("return hub.cursor") == 1234
    box.fill("99999999")
    box.press("Enter")
    assert tab.hub("return hub.cursor") == tab.hub("return hub.fold.length")
    assert "99999999" in tab.page.locator(".inms-bar-said").inner_text().replace(",", "")
    assert SIZE == 16


# --- the benchmark ------------------------------------------------------------------------------


def test_the_benchmark_runs_and_prints_one_line_of_json() -> None:
    command = [sys.executable, bench.__file__, "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {"seed", "machine", "sizes", "publisher", "pictures"} <= set(found)
    assert found["sizes"]["demo"] < 2_000_000
    assert found["pictures"]["seek_ms"]["fold"]["median"] < 1000


def test_who_waits_for_the_copy_budget_is_told_at_any_moment(kit: tuple[Tab, Path]) -> None:
    """The line is visible: each waiting agent's card says what it waits for, at the cursor."""
    from playwright.sync_api import expect

    tab, folder = kit
    with Lab(DryModel(100, 1024, 1024), block_size=16, pool_bytes="1MiB", copy_budget=1) as lab:
        agent = lab.agent("a")
        agent.read([1] * 24).result()
        forks = [agent.fork().result() for _ in range(3)]
        for fork in forks:
            fork.read([2])
        lab.run_to()
        path = export_html(lab.log, folder / "storm.html", redact="nothing")
    copies = [i + 1 for i, e in enumerate(lab.log.events) if isinstance(e, Copied)]
    tab.page.goto(path.as_uri())
    waiting = tab.page.locator(".inms-agents .a-wait")
    for at, count in zip((*copies, len(lab.log)), (2, 1, 0, 0), strict=True):
        tab.page.evaluate(f"{HUB}.seek({at})")
        expect(waiting).to_have_count(count)
    tab.page.evaluate(f"{HUB}.seek({copies[1]})")
    expect(waiting).to_contain_text("copy-on-write budget")
