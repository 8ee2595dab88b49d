// A scrubber, a lane for each agent, and memory over the log; all over one axis: events.
import { el, sharp, fit } from "./dom.js";
import { mib } from "./units.js";
import { clamp } from "./state.js";
import { TIME_ENDS, TimeIndex, timeFind } from "./moments.js";
import { BAR_GLYPHS, barWords, barSet, barButton } from "./bar.js";

const TIME_LANES = 8; // seen at once; the rest by scrolling
// What is drawn of the rows of State.row: key, its value, how, and further columns for its words.
const TIME_CHARTS = [
  ["memory", 7, ["held", r => r[2], "area"], ["cached", r => r[3], "thin"], ["alone", r => r[5], "dash"]],
  ["waste", 4, ["unused", (r, size) => 100 * r[6] / (r[2] * size), "", 6], ["holes", (r, _, room) => 100 * r[7] / room, "dash", 7], ["stranded", (r, _, room) => 100 * r[8] / room, "dot", 8]],
  ["reuse", 3, ["hits", r => 100 * r[9] / r[10], "", 9, 10], ["shifted", r => 100 * r[11] / r[10], "dash", 11]],
];
const TIME_ABOUT = ["alone", "cached", "unused", "holes", "stranded", "hits", "shifted"];
// Paints list[i..j) once for each column of so many pixels: the cost is the width's, not the log's.
function timeEach(list, view, pixels, paint) {
  for (let j, i = timeFind(list, view.from); list[i] <= view.to; i = j) {
    const x = view.x(list[i]), next = view.at(x + pixels);
    j = list[i + 1] < next ? timeFind(list, next, i + 2) : i + 1;
    paint(x, i, j);
  }
}
export function timeline(root, hub) {
  const { fold } = hub, [t, n] = barWords(hub, "time");
  const size = hub.projector ? 15 : 12, row = size + 3, tall = size + 9, left = size * 10;
  let index = new TimeIndex(fold), from = 0, span = 0, held = false, was, drawn, seated, view, rolled, shown = []; // span 0: all
  const css = getComputedStyle(root), colours = {}, colour = name => (colours[name] ||= css.getPropertyValue(`--${name}`));
  const canvas = () => el("canvas", { "aria-hidden": "true" });
  const dim = text => el("span", { class: "inms-dim" }, text);
  const over = canvas(), strip = canvas(), lanes = canvas(), room = el("div"), head = el("i"), more = dim(), old = dim(), seen = dim(), empty = dim(t("empty"));
  const range = el("input", { type: "range", "aria-label": t("scrubber"), oninput: () => hub.seek(+range.value) });
  const list = el("div", { class: "inms-time-list", tabindex: 0, role: "spinbutton", "aria-label": t("agents"), "aria-valuemin": 0 }, lanes, room);
  const charts = TIME_CHARTS.map(([name, high, ...lines]) => ({ name, high: high * size, lines, words: el("p"), canvas: canvas() }));
  const box = el("div", { class: "inms-time-box" }, over, range, strip, old, list, more, ...charts.flatMap(c => [c.words, c.canvas]), head, empty);
  root.append(el("h3", {}, t("title"), seen, ...[["out", 2], ["in", 0.5], ["all", 1e9]].map(([key, f]) => barButton(t(key), () => scale(f)))), box);
  const about = key => { // what a number means, to those who ask
    const title = TIME_ABOUT.includes(key) ? t(`about_${key}`) : null;
    return { title, role: title && "note", "aria-description": title };
  };
  const again = () => { drawn = seated = ""; for (const name in colours) delete colours[name]; hub.change(); };
  const stops = [...box.querySelectorAll("canvas")].map(c => sharp(c, again));

  // The window always holds the playhead.
  const total = () => Math.max(1, fold.length - fold.first);
  const scale = factor => { // around the playhead
    const now = span || total(), to = Math.max(16, now * factor);
    from = hub.cursor - (hub.cursor - from) * to / now;
    span = to < total() ? to : 0;
    hub.change();
  };
  const place = width => {
    const wide = span < total() && span || total(), edge = held ? 0 : wide / 20, end = width - 8, k = (end - left) / wide;
    if (wide > span) span = 0;
    from = clamp(clamp(from, hub.cursor - wide + edge, hub.cursor - edge), fold.first, fold.length - wide);
    view = { from, to: from + wide, end, x: i => left + (i - from) * k, at: x => from + (x - left) / k };
  };
  const pan = to => { // takes the playhead along
    const edge = span / 20;
    from = clamp(to, fold.first, fold.length - span);
    const inside = Math.round(clamp(hub.cursor, from > fold.first ? from + edge : from, from + span < fold.length ? from + span - edge : fold.length));
    if (inside === hub.cursor) hub.change(); else hub.seek(inside);
  };
  const drag = (node, move) => {
    node.onpointerdown = event => {
      if (event.button || !view) return;
      event.preventDefault(); node.setPointerCapture(event.pointerId); range.focus({ preventScroll: true });
      held = true; move(event.offsetX);
    };
    node.onpointermove = event => { if (held) move(event.offsetX); };
    node.onlostpointercapture = () => { held = false; };
  };
  for (const node of [strip, ...charts.map(c => c.canvas)]) drag(node, x => hub.seek(view.at(x)));
  strip.title = t("strip");
  drag(over, x => {
    const to = fold.first + (x - left) / (view.end - left) * total();
    if (span) pan(to - span / 2); else hub.seek(to);
  });
  strip.addEventListener("wheel", event => {
    if (!event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    scale(Math.exp(clamp(event.deltaY, -100, 100) * 0.01));
  }, { passive: false });
  root.onkeydown = event => {
    const factor = !event.ctrlKey && !event.metaKey && { "+": 0.5, "=": 0.5, "-": 2, 0: 1e9 }[event.key];
    if (factor) { event.preventDefault(); scale(factor); }
  };

  // Agents: hover names one, a click or the arrow keys select it.
  const tell = l => `${hub.nameOf(l.id)}: ${hub.t("table_" + (hub.state().seqs[l.id]?.state || "absent"))}`;
  const under = event => shown[Math.floor((event.offsetY + list.scrollTop) / tall)];
  const choose = l => { hub.agent = l.id === hub.agent ? null : l.id; hub.change(); hub.say(tell(l)); };
  const reveal = i => { list.scrollTop = clamp(list.scrollTop, (i + 1) * tall - list.clientHeight, i * tall); };
  lanes.onclick = event => { const l = under(event); if (l) choose(l); };
  lanes.onpointermove = event => { const l = under(event); list.title = l ? tell(l) : ""; };
  list.onscroll = () => { if (list.scrollTop !== rolled) hub.change(); }; // not when it was us who scrolled
  list.onkeydown = event => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key], i = shown.findIndex(l => l.id === hub.agent) + way;
    if (!way) return;
    event.preventDefault(); event.stopPropagation();
    if (shown[i]) { reveal(i); choose(shown[i]); }
  };

  const open = (node, width, high) => {
    const c = fit(node, width, high);
    c.clearRect(0, 0, width, high);
    c.font = `${size}px ${css.fontFamily}`; c.textBaseline = "middle"; c.globalAlpha = 1;
    const rect = (name, ...at) => { c.fillStyle = colour(name); c.fillRect(...at); };
    const text = (words, x, y, name, align = "left", most) => { c.fillStyle = colour(name); c.textAlign = align; c.fillText(words, x, y, most); };
    return { c, rect, text };
  };
  const drawStrip = width => {
    const marks = Object.entries(index.marks), { rect, text } = open(strip, width, row * (1 + marks.length) + 2);
    const rough = (view.to - view.from) * size * 8 / (view.end - left), ten = 10 ** Math.floor(Math.log10(rough));
    const tick = Math.max(1, ten * [1, 2, 5, 10].find(f => f * ten >= rough));
    text(t("events"), 0, row / 2, "dim");
    for (let i = Math.ceil(view.from / tick) * tick; i <= view.to; i += tick) {
      rect("line", view.x(i), row, 1, row * marks.length);
      text(n(i), Math.min(view.x(i), view.end - size * 2), row / 2, "dim", "center");
    }
    marks.forEach(([kind, moments], r) => {
      const y = row * (r + 1.5);
      text(`${BAR_GLYPHS[kind]} ${t(kind)}`, 0, y, moments.length ? "text" : "dim");
      text(n(timeFind(moments, hub.cursor + 1)), left - 8, y, "dim", "right");
      timeEach(moments, view, size / 2, (x, i, j) => {
        text(BAR_GLYPHS[kind], x, y, kind, "center");
        if (j - i > 4) rect(kind, x - size / 4, y + row / 2 - 3, size / 2, 2);
      });
    });
  };
  const drawLanes = width => {
    const high = Math.min(shown.length, TIME_LANES) * tall, first = Math.floor(list.scrollTop / tall);
    list.style.height = `${high}px`; room.style.height = `${shown.length * tall - high}px`;
    const { c, rect, text } = open(lanes, width, high);
    shown.slice(first, first + TIME_LANES + 1).forEach((l, i) => {
      const y = (first + i) * tall - list.scrollTop, base = y + tall - 3, end = view.x(l.end || fold.length), start = Math.max(left, view.x(l.start));
      const mine = l.id === hub.agent ? "▸ " : "";
      if (mine) { c.globalAlpha = 0.25; rect("accent", 0, y, width, tall); c.globalAlpha = 1; }
      text(mine + hub.nameOf(l.id), 0, y + tall / 2, l.end ? "dim" : "text", "left", left - 8);
      rect("line", start, base - 1, Math.min(view.end, end) - start, 2);
      timeEach(l.at, view, 1, (x, a, b) => {
        const most = Math.max(...l.size.slice(a, Math.min(b, a + 16))), to = view.x(l.at[b - 1]), wide = to - Math.max(left, view.x(l.from[a]));
        const up = most > 1 ? Math.min(tall - 4, 7 + Math.log2(most)) : 4;
        rect(most > 1 ? "prefill" : "decode", to - wide, base - up, Math.max(1, wide - (wide > 4)), up);
      });
      timeEach(l.read, view, 2, x => rect("strong", x, y + 2, 1, tall - 4));
      for (const kind of ["share", "shift", "copy"]) timeEach(l[kind], view, size / 2, x => text(BAR_GLYPHS[kind], x, y + tall / 2 - 2, kind, "center"));
      if (l.end <= view.to) text(TIME_ENDS[l.how], Math.min(end + 2, view.end), y + tall / 2, l.how === "fail" ? "fail" : "text");
    });
  };
  const plot = ({ canvas, high, lines }, width, valueOf, label, top) => {
    const { c, rect, text } = open(canvas, width, high + 4), rows = fold.series, all = lines.map(() => []);
    let i = timeFind(rows, view.from, 0, r => r[0]), start = left;
    for (let x = left; x <= view.end; x++) { // the most in each column
      const to = view.at(x), peak = lines.map(line => (i ? valueOf(line, rows[i - 1]) : 0));
      for (; rows[i]?.[0] <= to; i++) lines.forEach((line, k) => { peak[k] = Math.max(peak[k], valueOf(line, rows[i])); });
      if (!i) start = x + 1;
      peak.forEach((v, k) => { all[k].push(v); top = Math.max(top, v); });
    }
    const y = v => 3 + (1 - v / top) * high;
    rect("line", left, high + 3, view.end - left, 1); rect("line", left, 3, view.end - left, 1);
    text(label(top), left - 6, 3 + size / 2, "dim", "right"); text(label(0), left - 6, high - size / 2 + 3, "dim", "right");
    lines.forEach(([name, , how], k) => {
      c.beginPath();
      for (let x = start; x <= view.end; x++) c.lineTo(x, y(all[k][x - left]));
      c.strokeStyle = c.fillStyle = colour(name); c.lineWidth = how === "thin" ? 1 : 2; c.setLineDash({ dash: [6, 4], dot: [2, 3] }[how] || []);
      c.stroke();
      c.lineTo(view.end, y(0)); c.lineTo(start, y(0));
      c.globalAlpha = { area: 0.35, thin: 0.2 }[how] || 0; c.fill(); c.globalAlpha = 1;
    });
  };

  // Records that hold no longer, the last three of them, and who has them in a context all the same.
  const superseded = state => index.replaced.filter(([at]) => at <= hub.cursor).slice(-3).map(([, now, id]) => {
    const readers = state.seqs.filter(q => q && state.live(q) && q.segments.some(s => s.source === id)).map(q => hub.nameOf(q.id));
    return t(readers[0] ? "still_read" : "replaced", hub.nameOf(now), hub.nameOf(id), readers.slice(0, 6).join(", ") + (readers[6] ? " …" : ""));
  }).join(" · ");

  return {
    pace: 100, // milliseconds between two pictures while the log only grows
    draw(state) {
      if (index.first !== fold.first) index = new TimeIndex(fold);
      index.read(fold);
      const width = box.clientWidth, { cursor } = hub, now = state.row(), pools = [...state.pools.values()];
      if (!width) return;
      place(width);
      Object.assign(range, { min: fold.first, max: fold.length, value: cursor, ariaValueText: t("at", n(cursor), n(fold.length), n(state.step)) });
      barSet(seen, span ? t("window", n(Math.ceil(from)), n(Math.floor(view.to))) : "");
      head.style.left = `${view.x(cursor) - 1}px`;
      drawStrip(width);
      const some = fold.series.length > 0, blocks = pools.reduce((sum, p) => sum + p.count, 0);
      const each = pools.reduce((sum, p) => sum + p.count * p.size, 0) / blocks, even = pools.every(p => p.size === each);
      const bytes = even ? each * (fold.about.bytes_per_token || 0) : 0, percent = v => `${v.toFixed(v < 10 && v % 1 ? 1 : 0)} %`;
      const amount = v => (bytes ? mib(v * bytes) : t("blocks", n(v)));
      const texts = [amount, percent, percent], valueOf = (line, r) => line[1](r, each, blocks) || 0;
      empty.hidden = some;
      for (const c of charts) c.words.hidden = c.canvas.hidden = !some;
      const sign = [width, from, span, fold.length, fold.first].join();
      if (sign !== drawn) { // the rest does not depend on the cursor
        drawn = sign;
        shown = [...index.lanes.values()].filter(l => l.start <= view.to && !(l.end < from));
        const { c, rect, text } = open(over, width, 14), k = (view.end - left) / total();
        text(t("whole"), 0, 7, "dim"); rect("line", left, 6, view.end - left, 2);
        c.globalAlpha = span ? 0.8 : 0.3; rect("accent", left + (from - fold.first) * k, 2, Math.max(3, (view.to - from) * k), 10);
        if (some) charts.forEach((chart, i) => plot(chart, width, valueOf, texts[i], [1, 5, 100][i]));
      }
      barSet(old, superseded(state));
      const moment = `${cursor} ${span}`;
      if (was !== moment) { // its agents are in sight
        was = moment;
        list.scrollTop = (timeFind(shown, cursor, 0, l => l.start) + 1) * tall - list.clientHeight;
      }
      const seat = [sign, hub.agent, list.scrollTop].join();
      if (seat !== seated) {
        seated = seat; rolled = list.scrollTop;
        drawLanes(width);
        barSet(more, shown.length > TIME_LANES ? `${t("legend")} · ${t("more", n(shown.length - TIME_LANES))}` : shown.length ? t("legend") : "");
        Object.assign(list, { ariaValueMax: shown.length, ariaValueNow: 1 + shown.findIndex(l => l.id === hub.agent), ariaValueText: hub.agent === null ? t("none") : hub.nameOf(hub.agent) });
      }
      if (some) charts.forEach(({ name, lines, words }, i) => {
        const parts = [["title", t(name), i > 1 && "hits"], ...lines.filter(([key]) => key !== "shifted" || now[11]).map(line => [line[0], t(line[0], texts[i](valueOf(line, now)), ...line.slice(3).map(k => n(now[k])))])];
        if (!i) {
          const [, , held, , , alone] = now;
          if (alone) parts.push(held > alone ? ["extra", t("extra", percent(100 * held / alone - 100))] : ["saved", t("saved", percent(100 - 100 * held / alone))]);
          parts.push(["pool", t("room", amount(blocks))], ...pools.slice(0, 12).map(p => ["pool", t("pool", p.name, n(p.held), n(p.count))]));
          if (pools.length > 12) parts.push(["pool", t("pools", n(pools.length - 12))]);
        }
        if (words.now !== `${parts}`) {
          words.now = `${parts}`;
          words.replaceChildren(...parts.map(([key, text, why]) => el("span", { class: `inms-key inms-key-${key}`, ...about(why || key) }, text, " ")));
        }
      });
    },
    destroy() { for (const stop of stops) stop(); },
  };
}
