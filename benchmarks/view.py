"""What the live views cost: `python benchmarks/view.py [--quick] [--json]`

In headless Chromium, on synthetic logs (big_log.py): first paint of a large pool, redraws of a
million blocks, redraws while events arrive, seeks in a long log, the time to open it. In Python:
what the publisher takes of a run, as `inms-lab bench view` prints it. Sizes of the browser code
and of the exported demo. Loopback only.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import platform
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEED = 0
VIEWPORT = {"width": 1280, "height": 1000}

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import browser  # noqa: E402
from big_log import BigLog  # noqa: E402

from inms_lab.bench.view import STEP_SECONDS  # noqa: E402
from inms_lab.bench.view import measure as publishing  # noqa: E402
from inms_lab.config import Config  # noqa: E402
from inms_lab.terminal import scenario  # noqa: E402
from inms_lab.terminal.demo import run_demo  # noqa: E402
from inms_lab.terminal.standin import dry_model  # noqa: E402
from inms_widgets import View, esm  # noqa: E402
from inms_widgets.export import page as exported  # noqa: E402
from inms_widgets.feed import Feed, Position  # noqa: E402
from inms_widgets.words import strings  # noqa: E402

# What the page does. `pack`: the messages of a log one behind the other, each behind its length.
DRIVER = """
const frame = () => new Promise(requestAnimationFrame);
const painted = async () => { await frame(); await new Promise(done => setTimeout(done)); };
const all = values => values.sort((a, b) => a - b);
const spread = values => {
  const at = share => all(values)[Math.floor(values.length * share)];
  return { median: at(0.5), p95: at(0.95), max: Math.max(...values) };
};
window.bench = {
  async fetch(name) {
    const data = await (await fetch(name)).arrayBuffer(), list = [];
    for (let at = 0; at < data.byteLength;) {
      const size = new DataView(data).getUint32(at, true);
      list.push(new Uint8Array(data, at + 4, size));
      at += 4 + size;
    }
    return list;
  },
  push(packed) {
    const m = unpack(packed);
    return this.fold.push(m);
  },
  async open(name, options) {
    this.hub?.stop();
    const root = document.createElement("div");
    document.getElementById("inms").replaceWith(root);
    root.id = "inms";
    const list = await this.fetch(name), start = performance.now();
    this.fold = new Fold();
    this.rest = list.slice(1);
    this.push(list[0]);
    const parsed = performance.now();
    this.hub = build(root, this.fold, { strings: STRINGS, ...options });
    await painted();
    const now = performance.now();
    const events = this.fold.length, parse = parsed - start, paint = now - parsed;
    return { parse, paint, open: now - start, since_navigation: now, events };
  },
  map() { return this.hub.parts.find(part => part.redraw && part.where); },
  async full(seconds) { // every frame draws every block again
    const map = this.map(), start = performance.now();
    let frames = 0, work = 0;
    while (performance.now() - start < 1000 * seconds) {
      const before = performance.now();
      map.redraw();
      work += performance.now() - before;
      frames++;
      await frame();
    }
    return { fps: frames / (performance.now() - start) * 1000, work: work / frames };
  },
  async delta() { // every frame brings a message
    const start = performance.now();
    let frames = 0, work = 0;
    for (const packed of this.rest) {
      const before = performance.now();
      this.push(packed); this.hub.received(); this.now();
      work += performance.now() - before;
      frames++;
      await frame();
    }
    return { fps: frames / (performance.now() - start) * 1000, work: work / frames, frames };
  },
  now() { // what the next frame would draw
    const { hub } = this;
    cancelAnimationFrame(hub.frame); hub.frame = 0;
    hub.draw(performance.now());
  },
  async seeks(cursors) { // the work until it is drawn; with the wait for the page's frame
    const fold = [], work = [], shown = [];
    for (const cursor of cursors) {
      let start = performance.now();
      this.hub.seek(cursor);
      await frame();
      shown.push(performance.now() - start);
      await frame();
    }
    for (const cursor of cursors.toReversed()) {
      const start = performance.now();
      this.hub.seek(cursor);
      this.hub.state();
      fold.push(performance.now() - start);
      this.now();
      work.push(performance.now() - start);
      await frame();
    }
    return { fold: spread(fold), work: spread(work), shown: spread(shown) };
  },
};
"""


def kit() -> str:
    """A page with the dashboard's code, nothing shown, and what drives it: `bench`."""
    source = esm.esm(offline=True).replace("</script", "<\\/script")
    names = "window.STRINGS = " + json.dumps(strings())
    more = "Object.assign(window, { Fold, build, unpack });"
    return (
        '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
        f"<style>body{{margin:8px}}{esm.css()}</style><div id='inms'></div>"
        f'<script type="module">{source}\n{more}{names};{DRIVER}</script>'
    )


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder on the loopback address, with the kit as `kit.html`."""
    (folder / "kit.html").write_text(kit(), "utf-8")
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def write(path: Path, feed: Feed, at: Position, most: int | None = None) -> int:
    """What a reader at `at` lacks of the log, as messages in a file; gives their number."""
    parts, count = [], 0
    while count == 0 or feed.is_behind(at):
        data = feed.next(at, most).packed()
        parts += [len(data).to_bytes(4, "little"), data]
        count += 1
    path.write_bytes(b"".join(parts))
    return count


def growing(path: Path, num_blocks: int, events: int, each: int) -> None:
    """A log that fills its pool, as one message, then `events` more, `each` to a message."""
    big, at = BigLog(num_blocks, seed=SEED), Position()
    feed = Feed(big.fill())
    write(path, feed, at)
    big.grow(len(big.log) + events)
    more = path.with_suffix(".more")
    write(more, feed, at, each)
    path.write_bytes(path.read_bytes() + more.read_bytes())


# --- in the browser ----------------------------------------------------------------------------


def pictures(quick: bool) -> dict[str, Any]:
    """Everything that is measured in the page."""
    small, large, long = (10_000, 50_000, 40_000) if quick else (100_000, 1_000_000, 1_000_000)
    seconds, num_seeks, deltas = (0.5, 10, 20) if quick else (4.0, 100, 150)
    out: dict[str, Any] = {"small": small, "large": large, "long": long, "seeks": num_seeks}
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as address:
        folder = Path(name)
        growing(folder / "small", small, 0, 1)
        growing(folder / "large", large, deltas * 100, 100)
        write(folder / "long", Feed(BigLog(small, seed=SEED).grow(long)), Position())
        with browser.chromium(viewport=VIEWPORT) as page:

            def fresh(log: str, **options: Any) -> Any:
                page.goto(f"{address}/kit.html")
                return page.evaluate("([n, o]) => bench.open(n, o)", [log, options])

            fresh("small")  # the browser's own first time is not ours
            out["first_paint_ms"] = fresh("small")
            out["first_paint_map_ms"] = fresh("small", parts=["map"])
            fresh("large")
            out["full"] = page.evaluate("s => bench.full(s)", seconds)
            out["delta"] = page.evaluate("() => bench.delta()")
            fresh("large", parts=["map"])
            out["delta_map"] = page.evaluate("() => bench.delta()")
            out["open_long_ms"] = fresh("long")
            cursors = random.Random(SEED).choices(range(long), k=num_seeks)
            out["seek_ms"] = page.evaluate("list => bench.seeks(list)", cursors)
            out["heap_mb"] = page.evaluate("() => performance.memory.usedJSHeapSize / 1e6")
    return out


# --- in Python --------------------------------------------------------------------------------


def sizes() -> dict[str, int]:
    """Bytes of the browser code, of its style, and of the exported dry demo."""
    model, text = dry_model("smollm2-135m")
    parts, logs = scenario.load(text.encode, text.decode, 0.125), dict[str, Any]()
    run_demo(model, "dry", parts, Config(block_size=16), logs=logs)
    return {
        "esm": len(esm.esm().encode()),
        "esm_map": len(esm.esm(("map", "detail")).encode()),
        "css": len(esm.css().encode()),
        "strings": len(json.dumps(strings()).encode()),
        "demo": len(exported(logs["inms"]).encode()),
    }


# --- the table ---------------------------------------------------------------------------------


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What was measured, what it was, and what issue B asks for."""

    def ms(row: dict[str, float]) -> str:
        return f"{row['median']:.1f} / {row['p95']:.1f} / {row['max']:.1f} ms"

    view, long = found["pictures"], f"{found['pictures']['long']:,} events"
    small, large = (f"{view[size]:,} blocks" for size in ("small", "large"))
    first, only = view["first_paint_ms"], view["first_paint_map_ms"]
    yield f"first paint, {small}: from parsed data", f"{first['paint']:.0f} ms", "< 1000 ms"
    yield "  the same with parsing", f"{first['open']:.0f} ms", ""
    yield "  the same from navigation", f"{first['since_navigation']:.0f} ms", ""
    yield "  map alone, from parsed data", f"{only['paint']:.0f} ms", ""
    full, delta, bare = view["full"], view["delta"], view["delta_map"]
    yield (
        f"full redraws, {large}",
        f"{full['fps']:.0f} fps, {full['work']:.1f} ms each",
        ">= 10 fps",
    )
    yield (
        "deltas, the same, 100 events each",
        f"{delta['fps']:.0f} fps, {delta['work']:.1f} ms each",
        ">= 30 fps",
    )
    yield "  map alone", f"{bare['fps']:.0f} fps, {bare['work']:.1f} ms each", ""
    seek = view["seek_ms"]
    yield f"seek, {long}: books (median, p95, max)", ms(seek["fold"]), "< 50 ms"
    yield "  books and pictures", ms(seek["work"]), "< 50 ms"
    yield "  until the page's frame", ms(seek["shown"]), ""
    yield f"open {long}", f"{view['open_long_ms']['open']:.0f} ms", ""
    yield "heap with it", f"{view['heap_mb']:.0f} MB", ""
    for name, label in (("bare", "no model"), ("paced", f"{1000 * STEP_SECONDS:.0f} ms a step")):
        part = found["publisher"][name]
        spread = part["view_ratio_spread"]
        words = f"{part['view_ratio']:.3f} ({spread['min']}-{spread['max']})"
        yield f"run with / without a view, {label}", words, "< 1.05"
        yield "  the publisher's thread", f"{part['publisher_share']:.1%} of the run", "< 5 %"
        yield "  last message after the last event", f"{part['lag_ms']:.0f} ms", "< 500 ms"
    size = found["sizes"]
    yield "browser code, block map", f"{size['esm_map'] / 1000:.1f} kB", "< 60 kB"
    yield "browser code, all parts", f"{size['esm'] / 1000:.1f} kB", ""
    yield "style, strings", f"{size['css'] / 1000:.1f}, {size['strings'] / 1000:.1f} kB", ""
    yield "exported dry demo", f"{size['demo'] / 1000:.0f} kB", "< 2000 kB"


def measure(quick: bool) -> dict[str, Any]:
    """All of it."""
    tokens, pairs = (120, 1) if quick else (1500, 7)
    found: dict[str, Any] = {
        "seed": SEED,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "quick": quick,
    }
    found["sizes"] = sizes()
    found["publisher"] = publishing(View, tokens, pairs)
    found["pictures"] = pictures(quick)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="one line of JSON, no table")
    options = parser.parse_args()
    found = measure(options.quick)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['machine']}, Python {found['python']}, seed {found['seed']}")
    for name, value, line in rows(found):
        print(f"{name:44} {value:36} {line}")


if __name__ == "__main__":
    main()
