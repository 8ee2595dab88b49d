// Weights as a page map: a strip for each process that has them, and one of them by tensor.
import { el, fit, sharp } from "./dom.js";

const MIB = 2 ** 20, LABEL = 150, GLOW = 700; // pixels, milliseconds
const size = bytes => (bytes < MIB ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / MIB).toFixed(1)} MiB`);

// Tensors of one layer are one group: "model.layers.3", or a tensor's own name without its end.
const groupOf = name => name.match(/^.*?\.\d+(?=\.)/)?.[0] ?? name.replace(/\.(weight|bias)$/, "");

// Where each tensor's cells lie: lines of cells by group, [group, first cell, cells].
function lines(tensors) {
  const groups = new Map();
  for (const [name, first, count] of tensors) {
    const group = groupOf(name), known = groups.get(group);
    if (known) known[1] += count; else groups.set(group, [first, count]);
  }
  const layers = [...groups.values()].map(g => g[1]).sort((a, b) => a - b),
    wide = Math.max(24, layers[Math.floor(layers.length / 2)] || 0), all = [];
  for (const [group, [first, count]] of groups)
    for (let at = 0; at < count; at += wide) all.push([at ? "" : group, first + at, Math.min(wide, count - at)]);
  return { all, wide };
}

const render = ({ model, el: host }) => {
  const get = name => model.get(name), tensors = get("tensors"), { all, wide } = lines(tensors),
    big = get("projector"), LINE = big ? 17 : 12, last = tensors.at(-1), numCells = last ? last[1] + last[2] : 0,
    column = get("lang") === "zh" ? 1 : 0, strings = get("strings"), still = matchMedia("(prefers-reduced-motion: reduce)").matches,
    t = (key, ...args) => (strings[`weights_${key}`]?.[column] ?? key).replace(/\{(\d)\}/g, (_, i) => args[i] ?? ""),
    root = el("div", { class: `inms-dash inms-weights${big ? " inms-projector" : ""}`, lang: column ? "zh-Hans" : "en", role: "group", "aria-label": t("title", "") }),
    note = el("p", { class: "inms-message", role: "status", hidden: true }), head = el("h3"), sum = el("p"), legend = el("p", { class: "inms-legend" }),
    strips = el("div", { class: "inms-strips" }), title = el("h3"), canvas = el("canvas", { role: "img" }), under = el("p", { class: "inms-dim inms-under" }),
    rows = el("tbody"), table = el("details", {}, el("summary", {}, t("numbers")), el("table", {}, el("thead", {}, el("tr", {}, ...["tensor", "own", "shared", "absent"].map(key => el("th", { scope: "col" }, t(key))))), rows));
  for (const key of ["own", "shared", "absent"]) legend.append(el("span", {}, el("b", { class: `inms-${key}` }), t(`l_${key}`)));
  root.append(el("p", { class: "inms-message", hidden: true }), note, el("section", { class: "inms-part" }, head, sum, legend, strips), el("section", { class: "inms-part" }, title, canvas, under, table));
  host.replaceChildren(root);
  root.dataset.lmSuppressShortcuts = "true";

  let chosen = null, framed = null, over = null, frame = 0, stopped = false;
  const glow = new Map(), before = new Map(), lanes = new Map(); // by a holder's name
  const bytesOf = view => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const tensorAt = cell => tensors.findIndex(([, first, count]) => cell >= first && cell < first + count);
  const colours = () => { const css = getComputedStyle(root), c = name => css.getPropertyValue(`--${name}`).trim(); return { absent: c("line"), shared: c("global"), own: c("share"), frame: c("copy"), text: c("text"), dim: c("dim"), white: c("strong") }; };
  const holder = () => { const { holders } = get("now"); return holders.find(h => h.name === chosen) || holders[0]; };

  function cell(pen, look, value, x, y, w, h, lit) { // what is shared lies low, what is one's own hangs from the top, and fills the cell if it is all
    pen.globalAlpha = 1;
    pen.fillStyle = look.absent; pen.fillRect(x, y + h - 2, w, 2);
    if (value & 15) { pen.globalAlpha = 0.4 + 0.6 * (value & 15) / 15; pen.fillStyle = look.shared; pen.fillRect(x, y + h / 2, w, h / 2); }
    if (value >> 4) { pen.globalAlpha = 1; pen.fillStyle = lit ? look.white : look.own; pen.fillRect(x, y, w, (value >> 4) === 15 ? h : h * (0.25 + 0.3 * (value >> 4) / 15)); }
    pen.globalAlpha = 1;
  }
  const lit = (name, at) => !still && performance.now() - (glow.get(name)?.[at] || -GLOW) < GLOW;

  function drawStrip(found, look) {
    const lane = lanes.get(found.name).canvas, width = lane.clientWidth;
    if (!width) return;
    const pen = fit(lane, width, 18), cells = bytesOf(found.cells);
    pen.clearRect(0, 0, width, 18);
    for (let x = 0; x < width; x++) {
      const from = Math.floor(x * numCells / width), to = Math.max(from + 1, Math.floor((x + 1) * numCells / width));
      let own = 0, shared = 0, bright = false;
      for (let at = from; at < to; at++) { own = Math.max(own, cells[at] >> 4); shared = Math.max(shared, cells[at] & 15); bright ||= lit(found.name, at); }
      cell(pen, look, own << 4 | shared, x, 0, 1, 18, bright);
    }
  }
  const geometry = () => { const width = canvas.clientWidth, label = Math.min(LABEL, width / 3); return { width, label, step: Math.min(16, (width - label) / wide) }; };
  function drawMap(found, look) {
    const { width, label, step } = geometry();
    if (!width) return;
    const pen = fit(canvas, width, all.length * LINE + 2), cells = bytesOf(found.cells), gap = step > 5 ? 1 : 0, mark = tensors[framed ?? over];
    pen.clearRect(0, 0, width, all.length * LINE + 2);
    pen.font = `${big ? 13 : 10}px ${getComputedStyle(root).fontFamily}`; pen.textBaseline = "middle";
    all.forEach(([group, first, count], line) => {
      const y = line * LINE + 1;
      pen.fillStyle = look.dim;
      pen.fillText(group.replace(/^(model|transformer|encoder)\./, ""), 0, y + LINE / 2 - 1, label - 6);
      for (let n = 0; n < count; n++) {
        const at = first + n, inside = mark && at >= mark[1] && at < mark[1] + mark[2];
        cell(pen, look, cells[at], label + n * step, y, step - gap, LINE - 2, lit(found.name, at));
        if (inside) { pen.fillStyle = look.frame; pen.fillRect(label + n * step, y + LINE - 2, step, 2); }
      }
    });
  }
  function draw() {
    frame = 0;
    const found = holder();
    if (stopped || !found) return;
    const look = colours(), now = performance.now();
    for (const one of get("now").holders) if (one.cells) drawStrip(one, look);
    if (found.cells) drawMap(found, look);
    if (!still && [...glow.values()].some(times => times.some(time => time && now - time < GLOW))) frame = requestAnimationFrame(draw);
  }
  const redraw = () => { frame ||= requestAnimationFrame(draw); };

  function lane(found) {
    if (!lanes.has(found.name)) {
      const name = el("button", { onclick: () => { chosen = found.name; write(); } }), strip = el("canvas", { "aria-hidden": "true" }), words = el("span", { class: "inms-dim" });
      strip.addEventListener("click", () => name.click());
      lanes.set(found.name, { name, canvas: strip, words, row: el("div", { class: "inms-strip" }, name, strip, words), off: sharp(strip, redraw) });
      strips.append(lanes.get(found.name).row);
    }
    return lanes.get(found.name);
  }
  const counts = (found, number) => { const data = new Uint32Array(found.counts.buffer, found.counts.byteOffset, 2 * tensors.length); return [data[2 * number], data[2 * number + 1]]; };
  function tell(found) {
    const number = framed ?? over;
    if (number == null || !tensors[number] || !found.counts) { under.textContent = found.counts ? t("hint") : ""; return; }
    const [name, , , pages] = tensors[number], [own, shared] = counts(found, number);
    under.textContent = t("tensor_is", name, own, shared, pages - own - shared, pages);
  }
  function write() { // words and rows; the pictures follow in the next frame
    const { holders, version, open, problem } = get("now"), found = holder(), bytes = get("num_bytes");
    head.textContent = t("title", get("name")) + ` · ${size(bytes)} · ` + t("version", version) + (open ? "" : ` · ${t("closed")}`);
    root.firstChild.textContent = problem; root.firstChild.hidden = !problem;
    const extra = holders.reduce((all, h) => all + h.own, 0), live = holders.filter(h => h.state === "lives").length;
    sum.textContent = holders.length ? t("sum", live, ((bytes + extra) / bytes).toFixed(2), size(extra)) : t("nobody");
    for (const [name, one] of lanes) if (!holders.some(h => h.name === name)) { one.off(); one.row.remove(); lanes.delete(name); glow.delete(name); before.delete(name); }
    for (const one of holders) {
      const { name, words } = lane(one);
      name.textContent = one.name; name.ariaPressed = one === found;
      words.textContent = one.state === "lives" ? t("has", size(one.own), one.version) + (one.swapped ? ` · ${t("swapped", size(one.swapped))}` : "") + (one.cells ? "" : ` · ${t("untold")}`) : t("ended");
      if (one.cells) remember(one);
    }
    title.textContent = found ? t("of", found.name) : "";
    canvas.ariaLabel = found ? t("picture", found.name, size(found.own)) : "";
    if (found) tell(found);
    fill(found);
    redraw();
  }
  function remember(one) { // which cells have become one's own since the last look
    const cells = bytesOf(one.cells), old = before.get(one.name), times = glow.get(one.name) || new Array(cells.length).fill(0), now = performance.now();
    if (old && old !== cells) cells.forEach((value, at) => { if (value >> 4 > old[at] >> 4) times[at] = now; });
    glow.set(one.name, times); before.set(one.name, cells.slice());
  }
  function fill(found) {
    if (!table.open || !found?.counts) return rows.replaceChildren();
    const own = tensors.map((tensor, n) => [tensor, ...counts(found, n)]).filter(row => row[1]).sort((a, b) => b[1] - a[1]).slice(0, 40);
    rows.replaceChildren(...own.map(([[name, , , pages], mine, shared]) => el("tr", {}, el("th", { scope: "row" }, name), ...[mine, shared, pages - mine - shared].map(n => el("td", {}, n.toLocaleString("en"))))));
    if (!own.length) rows.append(el("tr", {}, el("td", { colspan: 4 }, t("none_own"))));
  }
  function look() {
    const { holder: name, tensor, note: text } = get("look");
    chosen = name || chosen; framed = tensor ? tensors.findIndex(one => one[0] === tensor) : null;
    note.textContent = text || ""; note.hidden = !text;
    write();
  }
  canvas.addEventListener("pointermove", event => {
    const { label, step } = geometry(), line = all[Math.floor((event.offsetY - 1) / LINE)], n = Math.floor((event.offsetX - label) / step);
    over = line && n >= 0 && n < line[2] ? tensorAt(line[1] + n) : null;
    if (holder()) { tell(holder()); redraw(); }
  });
  canvas.addEventListener("pointerleave", () => { over = null; if (holder()) tell(holder()); redraw(); });
  canvas.addEventListener("click", () => { framed = framed === over ? null : over; redraw(); });
  table.addEventListener("toggle", () => fill(holder()));
  const off = sharp(canvas, redraw);
  model.on("change:now", write); model.on("change:look", look);
  look();
  return () => { stopped = true; off(); for (const one of lanes.values()) one.off(); model.off("change:now", write); model.off("change:look", look); };
};

export default { render };
