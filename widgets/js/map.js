// Every block of every pool: cells while they fit, then dots, one pixel a block, tiles of blocks.
import { COPIED, COMMANDED, poolAt, blocksOf } from "./wire.js";
import { CACHED, PROMISED } from "./pool.js";
import { KIND, el, fit, sharp } from "./hub.js";

const MAP_SIZES = [1, 2, 4, 7, 13, 18, 32, 44]; // pixels a block; below level 0, 2 ** -level blocks a pixel
const MAP_CELL = 13, MAP_BIG = 32, MAP_HEAD = 28; // from these sizes on: a number, all marks; a heading's height
const MAP_TIERS = { global: "\u25c6", group: "\u25cf", private: "\u25a0", common: "\u25b2" };
const MAP_KINDS = { agent: "\u25cf", prompt: "\u25c6", record: "\u25a4" };
const MAP_FLASH = { new: "N", share: "S", copy: "C", evict: "E", free: "F", abort: "X" };
const mapShade = n => (n < 4 ? n : n < 8 ? 4 : n < 16 ? 5 : 6); // the more holders, the lighter

export const poolNamed = (state, name) => [...state.pools].find(([, pool]) => pool.name === name) || [];
// Who holds a block: [holder, segment, place in the segment's table].
export function holdersOf(state, id, block) {
  const out = [];
  for (const seq of state.seqs) for (const seg of seq?.segments || []) {
    const i = seg.pool === id ? seg.blocks.indexOf(block) : -1;
    if (i >= 0) out.push([seq, seg, i]);
  }
  return out;
}
// Lights what a holder holds.
export function lightHolder(hub, id) {
  const state = hub.state(), blocks = [];
  for (const seg of state.seqs[id]?.segments || []) for (const b of seg.blocks) blocks.push(`${state.pool(seg.pool).name}:${b}`);
  hub.agent = id; hub.emit("agent", id); hub.light(blocks);
  if (blocks.length) hub.say(hub.t("map_lit", hub.nameOf(id), blocks.length));
}
// Colours of blocks [from, to), `k` of them a pixel: the highest refcount wins.
export function mapPixels({ refs, flags, high }, lut, out, at, from, to, k) {
  let b = from;
  for (const stop = Math.min(to, high); b < stop; b += k) {
    let most = refs[b], kept = flags[b];
    if (k > 1) for (let c = b + 1, end = Math.min(b + k, stop); c < end; c++) { if (refs[c] > most) most = refs[c]; kept |= flags[c]; }
    out[at++] = lut[most ? (most < 99 ? most : 99) : kept & CACHED ? 100 : 0];
  }
  for (; b < to; b += k) out[at++] = lut[0];
}

export function blockMap(root, hub) {
  const t = hub.t.bind(hub), { min, max, ceil } = Math, tallest = hub.projector ? 560 : 420, forced = matchMedia("(forced-colors: active)");
  const press = (key, text) => `<button title="${t(key)}" aria-label="${t(key)}">${text}</button>`, edges = node => node.getBoundingClientRect();
  root.innerHTML = `<div class="map-bar"><h3>${t("map_title")}</h3>${press("map_out", "\u2212")}${press("map_in", "+")}${press("map_fit_all", t("map_fit"))}<button aria-pressed="false">${t("map_whole")}</button></div>
    <div class="map-body"><div class="map-box"><div><div class="map-view"><canvas></canvas><canvas tabindex="0" role="application" aria-label="${t("map_label")}"></canvas></div></div></div>
    <div class="map-chips" role="group" aria-label="${t("map_holders")}"><small></small></div><svg class="map-arcs" aria-hidden="true"></svg></div>
    <div class="map-line"></div><div class="map-legend"></div><i class="map-probe"></i>`;
  const [box, view, chips, body, arcs, line, legend, probe] = ["box", "view", "chips", "body", "arcs", "line", "legend", "probe"].map(x => root.querySelector(`.map-${x}`));
  const [base, canvas] = root.querySelectorAll("canvas"), [less, more, all, whole] = root.querySelectorAll("button"), rest = chips.firstChild;
  let look = null, bands = [], zoom = 0, width = 0, height = 0, drawn = "", cues = "", told = "", at = 0, end = null, here = null, flashes = [], timer = 0, lit = new Map();
  const bandOf = new Map(), chipOf = new Map(), life = new AbortController(), part = { full: 0, delta: 0, draw, hit, where, redraw, destroy };
  const get = spot => spot && bands.find(b => b.name === spot.pool && spot.block >= 0 && spot.block < b.shown);
  const rect = (pen, style, ...r) => { pen.fillStyle = style; pen.fillRect(...r); };
  const frame = (pen, style, thick, ...r) => { pen.strokeStyle = style; pen.lineWidth = thick; pen.strokeRect(...r); };
  const write = (pen, text, x, y, font, style, align = "center") => { pen.font = `${font} ${look.font}`; pen.fillStyle = style; pen.textAlign = align; pen.textBaseline = "middle"; pen.fillText(text, x, y); };

  function paint() { // colours are worked out once, never in a frame
    const rgb = name => { probe.style.color = forced.matches ? { panel: "Canvas", dim: "GrayText" }[name] || "CanvasText" : `var(--${name})`; return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number); };
    const mix = (a, b, x) => a.map((v, i) => Math.round(v + (b[i] - v) * x)), css = c => `rgb(${c})`, far = (a, b) => Math.abs(0.3 * (a[0] - b[0]) + 0.59 * (a[1] - b[1]) + 0.11 * (a[2] - b[2]));
    const dark = rgb("panel"), light = rgb("strong"), dim = rgb("dim"), grey = mix(dark, dim, 0.5), hatch = el("canvas", { width: 6, height: 6 }).getContext("2d");
    look = { dark: css(dark), light: css(light), dim: css(dim), line: css(grey), font: getComputedStyle(root).fontFamily };
    for (const k of ["copy", "share", "evict"]) look[k] = css(rgb(k));
    look.new = css(rgb("accent")); look.free = css(rgb("text")); look.abort = css(rgb("refuse"));
    hatch.strokeStyle = look.light; hatch.globalAlpha = 0.7; hatch.lineWidth = 1.4;
    for (const x of [-6, 0, 6]) { hatch.moveTo(x - 1, 7); hatch.lineTo(x + 7, -1); }
    hatch.stroke(); look.hatch = hatch.createPattern(hatch.canvas, "repeat");
    for (const tier in MAP_TIERS) {
      const hue = rgb(tier), shades = [mix(dark, dim, 0.16), ...[0.5, 0.72, 0.92].map(x => mix(dark, hue, x)), ...[0.24, 0.48, 0.74].map(x => mix(hue, light, x))];
      const lut = Uint32Array.from({ length: 101 }, (_, n) => { const [r, g, b] = n > 99 ? grey : shades[mapShade(n)]; return (255 << 24 | b << 16 | g << 8 | r) >>> 0; });
      look[tier] = { lut, hue: css(hue), fills: shades.map(css), inks: shades.map(c => css(far(c, dark) > 0.9 * far(c, light) ? mix(dark, [0, 0, 0], forced.matches ? 0 : 0.5) : light)) };
    }
    cues = drawn = "";
  }
  function explain() { // the legend, of what is to be seen now
    const sizes = bands.filter(b => b.rows).map(b => b.size), now = `${sizes} ${bands.map(b => b.tier)}`, most = max(...sizes), { fills, inks } = look[bands[0]?.tier || "private"];
    if (now === cues) return;
    cues = now;
    const mark = (name, style = "", text = "") => `<b class="map-mark map-${name}" style="${style}">${text}</b>`, cue = (from, key, icon) => (most >= from ? `<span>${icon}${t(`map_l_${key}`)}</span>` : "");
    legend.innerHTML = `<span>${t("map_l_hue")}${Object.keys(MAP_TIERS).filter(x => bands.some(b => b.tier === x)).map(x => ` <span style="color:${look[x].hue}">${MAP_TIERS[x]} ${t(`map_${x}`)}</span>`).join("")}</span>`
      + cue(-1 / 0, forced.matches ? "number" : "refs", [1, 2, 4, 16].map(n => mark("", `background:${fills[mapShade(n)]};color:${inks[mapShade(n)]}`, n)).join("")) + cue(4, "pending", mark("pending", `background-color:${fills[1]}`))
      + cue(-1 / 0, "cached", most > 2 ? mark("cached", "", most < MAP_CELL ? "" : 0) : mark("", `background:${look.line}`)) + cue(-1 / 0, "free", most < MAP_CELL ? mark("", `background:${fills[0]}`) : mark("empty"))
      + cue(18, "ro", mark("ro")) + cue(MAP_BIG, "fill", mark("part")) + cue(MAP_BIG, "lock", mark("lock"))
      + `<span>${t("map_l_flash")}${Object.keys(MAP_FLASH).map(k => ` <b style="color:${look[k]}">${MAP_FLASH[k]}</b> ${t(`map_f_${k}`)}`).join("")}</span>`;
  }

  // --- where everything is
  function layout(state) { // gives what a picture depends on besides the books
    const free = whole.ariaPressed === "true", order = Object.keys(MAP_TIERS);
    bands = [...state.pools].map(([id, pool]) => {
      const b = bandOf.get(id) || { id };
      bandOf.set(id, b);
      return Object.assign(b, { pool, name: pool.name, tier: MAP_TIERS[pool.tier] ? pool.tier : "common", was: b.shown, shown: free ? pool.count : pool.high, level: hub.projector ? 7 : 6, more: !free && pool.count > pool.high });
    }).sort((a, b) => order.indexOf(a.tier) - order.indexOf(b.tier));
    const size = b => {
      b.size = MAP_SIZES[max(0, b.level)]; b.k = 2 ** max(0, -b.level); b.cols = max(1, (width - 8) / b.size | 0);
      b.rows = ceil(b.shown / b.k / b.cols); b.foot = MAP_HEAD + b.rows * b.size; b.tall = b.foot + (b.more ? 26 : 10);
    };
    bands.forEach(size);
    for (let n = 0; n < 99 && bands.reduce((sum, b) => sum + b.tall, 0) > tallest; n++) { // the tallest gets smaller
      const big = bands.reduce((a, b) => (b.rows > 1 && b.tall > (a?.tall || 0) ? b : a), null);
      if (big) { big.level--; size(big); }
    }
    let y = 0;
    for (const b of bands) {
      if (zoom) { b.level = max(-20, min(MAP_SIZES.length - 1, b.level + zoom)); size(b); }
      b.top = y; y += b.tall;
    }
    height = max(1, min(y, tallest));
    view.parentNode.style.height = `${y}px`; box.style.height = view.style.height = `${height}px`;
    for (const b of bands) { const from = box.scrollTop - b.top - MAP_HEAD; b.from = max(0, min(b.rows, from / b.size | 0)); b.to = max(0, min(b.rows, ceil((from + height) / b.size))); }
    return `${width} ${height} ${devicePixelRatio} ${box.scrollTop} ${bands.map(b => [b.name, b.level, b.rows, b.top, b.shown < b.was])}`;
  }
  const place = (b, block) => { const unit = block / b.k | 0; return [4 + unit % b.cols * b.size, b.top + MAP_HEAD + (unit / b.cols | 0) * b.size - box.scrollTop]; };
  function hit(clientX, clientY) {
    const r = edges(canvas), x = clientX - r.left - 4, y = clientY - r.top + box.scrollTop, b = bands.find(b => y >= b.top + MAP_HEAD && y < b.top + b.foot);
    if (!b || x < 0 || x >= b.cols * b.size) return null;
    const block = (((y - b.top - MAP_HEAD) / b.size | 0) * b.cols + (x / b.size | 0)) * b.k;
    return block < b.shown ? { pool: b.name, block } : null;
  }
  function where(pool, block) {
    const b = get({ pool, block });
    if (!b) return null;
    const y = place(b, block)[1];
    if (y < 0) box.scrollTop += y - MAP_HEAD; else if (y + b.size > height) box.scrollTop += y + b.size + 6 - height;
    redraw();
    const r = edges(canvas), spot = place(b, block);
    return { x: r.left + spot[0] + b.size / 2, y: r.top + spot[1] + b.size / 2 };
  }

  // --- drawing
  function heading(pen, b) {
    const { pool } = b, n = x => x.toLocaleString(), y = b.top - box.scrollTop, px = hub.projector ? 16 : 13, about = t(`map_about_${b.tier}`);
    const text = t("map_counts", n(pool.held), n(pool.cached), n(pool.free), pool.size) + (b.size > 1 ? "" : ` \u00b7 ${t(b.k > 1 ? "map_tiles" : "map_pixels", b.k)}`), more = b.more ? t(pool.high ? "map_never" : "map_unused", n(pool.count - pool.high)) : "";
    if (b.told === text + more) return;
    b.told = text + more;
    pen.clearRect(0, y, width, MAP_HEAD); pen.clearRect(0, y + b.foot, width, b.tall - b.foot);
    const put = (words, x, style, font = "") => { write(pen, words, x, y + 14, `${font} ${px}px`, style, "left"); return x + pen.measureText(words).width + 9; };
    const x = put(b.name, put(MAP_TIERS[b.tier], 4, look[b.tier].hue) - 2, look.light, "600");
    pen.font = `${px}px ${look.font}`;
    const start = max(x, width - 4 - pen.measureText(text).width);
    if (x + pen.measureText(about).width + 16 < start) put(about, x, look.dim);
    put(text, start, look.dim);
    write(pen, more, 4, y + b.foot + 10, `${px - 1}px`, look.dim, "left");
  }
  function picture(pen, b, from, to) { // rows of dots or pixels, and marks on dots
    const { size, cols, pool } = b, n = to - from, y = b.top + MAP_HEAD - box.scrollTop + from * size, used = ceil(b.shown / b.k) - (b.rows - 1) * cols;
    if (n <= 0) return;
    b.ink.putImageData(b.image, 0, 0, 0, from - b.from, cols, n);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(b.ink.canvas, 0, from - b.from, cols, n, 4, y, cols * size, n * size);
    if (size > 2) {
      for (let c = 1; c <= cols; c++) rect(pen, look.dark, 3 + c * size, y, 1, n * size);
      for (let r = 1; r <= n; r++) rect(pen, look.dark, 4, y + r * size - 1, cols * size, 1);
      for (let i = from * cols; i < min(to * cols, pool.high); i++) {
        const held = pool.refs[i], x = 4 + i % cols * size, top = y + ((i / cols | 0) - from) * size;
        if (!held && pool.flags[i] & CACHED) rect(pen, look.dark, x + 1, top + 1, size - 3, size - 3);
        else if (held && pool.flags[i] & PROMISED) for (let d = 0; d < size - 1; d++) rect(pen, look.light, x + d, top + size - 2 - d, 1, 1);
      }
    }
    if (to === b.rows) pen.clearRect(4 + used * size, y + (n - 1) * size, (cols - used) * size, size);
  }
  function cell(pen, b, block, who) {
    const { pool, size } = b, [left, top] = place(b, block), w = size - 2, x = left + 1, y = top + 1, state = pool.state(block), big = size >= MAP_BIG, kept = state === "cached", { fills, inks } = look[b.tier];
    const n = block < pool.high ? pool.refs[block] : 0, ink = n ? inks[mapShade(n)] : look.dim, fill = fills[mapShade(n)], px = big ? size * 0.4 | 0 : size - (n > 9 ? 6 : 4), middle = y + w * (who ? 0.36 : 0.5);
    pen.clearRect(left, top, size, size);
    if (!n) { pen.setLineDash(kept ? [4, 2] : [1, 3]); frame(pen, kept ? look.dim : look.line, 1, x + 0.5, y + 0.5, w - 1, w - 1); pen.setLineDash([]); }
    else rect(pen, fill, x, y, w, w);
    if (state === "pending") { rect(pen, look.hatch, x, y, w, w); rect(pen, fill, x + w / 2 - px / 2, middle - px / 2, px, px); }
    if (n || kept) write(pen, n > 99 && !big ? "+" : n, x + w / 2, middle, `700 ${px}px`, ink);
    if (who) write(pen, who.length > 4 ? `${who.slice(0, 3).join("")}\u2026` : who.join(""), x + w / 2, y + w * 0.72, `${size * 0.28 | 0}px`, ink);
    if (n && size > 17 && (b.tier === "global" || b.tier === "group")) { // read-only
      const m = big ? 7 : 4;
      pen.fillStyle = ink; pen.beginPath(); pen.moveTo(x + w - m, y); pen.lineTo(x + w, y); pen.lineTo(x + w, y + m); pen.fill();
    }
    if (!n || !big) return;
    if (hub.fold.strings[pool.label[block]]?.includes("agent:")) { rect(pen, ink, x + 2, y + 5, 6, 4); frame(pen, ink, 1, x + 3.5, y + 2.5, 3, 3); } // a lock
    if (pool.fill[block] < pool.size) { rect(pen, look.dark, x, y + w - 4, w, 4); rect(pen, look.light, x, y + w - 3, w * pool.fill[block] / pool.size, 3); }
  }
  function cells(pen, state, b) { // those that are not as they were drawn
    const from = b.from * b.cols, to = min(b.to * b.cols, b.shown), { refs, flags, fill, label } = b.pool, who = [];
    if (b.size >= MAP_BIG) for (const seq of state.seqs) for (const seg of seq?.segments || []) if (seg.pool === b.id)
      for (const i of seg.blocks) if (i >= from && i < to) (who[i - from] ||= []).push([...seq.name][0] || "?");
    for (let i = from; i < to; i++) {
      const sign = `${refs[i]},${flags[i]},${fill[i]},${label[i]},${who[i - from]}`;
      if (b.signs[i - from] !== sign) { b.signs[i - from] = sign; cell(pen, b, i, who[i - from]); }
    }
  }
  function pixels(pen, b, list) {
    const { k, cols, from, shown } = b, width = cols * k;
    let lo = b.to, hi = from;
    const some = (a, z) => { // blocks [a, z), of one row
      const row = a / width | 0;
      if (row < from || row >= b.to) return;
      mapPixels(b.pool, look[b.tier].lut, b.words, (a / k | 0) - from * cols, a - a % k, min(z, shown), k);
      lo = min(lo, row); hi = max(hi, row + 1);
    };
    if (!list) {
      b.image = new ImageData(cols, b.to - from); b.words = new Uint32Array(b.image.data.buffer); b.ink = new OffscreenCanvas(cols, b.to - from).getContext("2d");
      mapPixels(b.pool, look[b.tier].lut, b.words, 0, from * width, min(b.to * width, shown), k);
      [lo, hi] = [from, b.to];
    } else {
      if (b.was < shown) some(b.was, shown);
      for (const [id, block] of list) if (id === b.id) some(block, block - block % k + k);
    }
    picture(pen, b, lo, hi);
  }
  // [pool, block, kind] of what happened between the moment drawn last and now; null: draw all.
  function changes(state) {
    const { fold } = hub, { words } = fold, a = min(at, state.index), z = max(at, state.index), out = [];
    if (end !== fold.end || a < fold.first || z - a > 2000) return null;
    for (let i = a; i < z; i++) {
      const p = fold.offsets[i - fold.first], type = words[p], [from, n, shift] = blocksOf(words, p);
      if (type === COMMANDED && fold.strings[words[p + 3]] === "rollback" || out.length > 30000) return null;
      if (type === COPIED) out.push([words[p + 4], words[p + 5]]);
      for (let j = 0; j < n; j++) out.push([words[p + poolAt(type)], words[from + j] >> shift, KIND[type]]);
    }
    return out;
  }
  function draw(state) {
    width = box.clientWidth;
    if (!width || life.signal.aborted) return; // out of sight: drawn when it comes back
    if (!look) paint();
    const key = layout(state), list = changes(state), same = key === drawn && list, pen = fit(base, width, height);
    if (same) part.delta++; else { part.full++; pen.clearRect(0, 0, width, height); }
    for (const b of bands) {
      if (!same) { b.signs = []; b.told = ""; }
      if (b.to > b.from) { if (b.size >= MAP_CELL) cells(pen, state, b); else pixels(pen, b, same); }
      heading(pen, b);
    }
    if (state.index !== at) flash(state.index, state.index > at && list || []);
    drawn = key; at = state.index; end = hub.fold.end;
    explain(); people(state); over(state);
  }
  function flash(now, list) {
    const time = performance.now(), no = hub.refusals();
    flashes = [...(hub.still ? [] : flashes), ...list.map(([id, block, kind]) => ({ id, block, kind, time })).filter(f => MAP_FLASH[f.kind])].slice(-300);
    for (const chip of chipOf.values()) chip.classList.remove("map-no");
    for (const d of list.length && no.size ? hub.fold.decisions : []) if (d && d.at >= at && d.at < now && no.has(d.at)) chipOf.get(d.seq)?.classList.add("map-no");
  }
  function over(state) { // over the blocks: what is lit, flashes, the pin, the cursor, arcs to the holders
    const pen = fit(canvas, width, height), now = performance.now(), last = hub.still ? 4000 : 600;
    pen.clearRect(0, 0, width, height);
    const ring = (b, block, style, thick, grow = 0) => {
      const [x, y] = place(b, block), s = b.size, r = max(0, 5 - s / 2 | 0) + grow;
      frame(pen, style, thick, x - r + 0.5, y - r + 0.5, s - 1 + 2 * r, s - 1 + 2 * r);
      return [x + s / 2, y + s / 2];
    };
    for (const b of bands) {
      const list = lit.get(b.name) || [], unit = i => list[i] / b.k | 0, small = b.size < MAP_CELL;
      for (let i = 0; i < list.length; i++) { // a run of neighbours at once
        const first = unit(i), row = first / b.cols | 0;
        let stop = first + 1;
        while (small && i + 1 < list.length && unit(i + 1) <= stop && (unit(i + 1) / b.cols | 0) === row) stop = unit(++i) + 1;
        if (row < b.from || row >= b.to) continue;
        const [x, y] = place(b, first * b.k), w = (stop - first) * b.size;
        if (b.size > 2) frame(pen, look.light, small ? 1 : 2, x, y, w - 1, b.size - 1); else rect(pen, look.light, x, y, w, b.size);
      }
    }
    flashes = flashes.filter(f => now - f.time < last);
    for (const f of flashes) {
      const b = bands.find(b => b.id === f.id);
      if (!b || f.block >= b.shown) continue;
      pen.globalAlpha = hub.still ? 1 : 1 - (now - f.time) / last;
      const [x, y] = ring(b, f.block, look[f.kind], 3), r = max(b.size, 10) / 2 - 4;
      if (b.size < MAP_CELL && flashes.length > 40) continue;
      rect(pen, look.dark, x + r - 5, y + r - 5, 10, 10);
      write(pen, MAP_FLASH[f.kind], x + r, y + r + 0.5, "700 10px", look[f.kind]);
    }
    pen.globalAlpha = 1;
    if (flashes.length && !timer) timer = hub.still ? setTimeout(again, last) : requestAnimationFrame(again);
    const pinned = get(hub.pin), under = get(hub.hover), mine = root.getRootNode().activeElement === canvas && get(here), spot = (under && hub.hover) || (mine && here) || hub.pin;
    let centre = pinned && (ring(pinned, hub.pin.block, look.dark, 6, 2), ring(pinned, hub.pin.block, look.new, 3, 2));
    if (mine) { pen.setLineDash([3, 2]); centre = ring(mine, here.block, look.light, 2, 2); pen.setLineDash([]); }
    if (under) centre = ring(under, hub.hover.block, look.light, 1.5);
    const [id, pool] = spot ? poolNamed(state, spot.pool) : [], holders = pool && centre ? holdersOf(state, id, spot.block) : [];
    line.textContent = pool && centre ? words(pool, spot.block, holders) : t("map_hint");
    link(holders, centre);
  }
  function again() { timer = 0; if (look && width && !life.signal.aborted) over(hub.state()); }
  function link(holders, centre) {
    const [all, pane, from] = [body, chips, box].map(edges), held = new Set(holders.map(([seq]) => seq.id));
    let paths = "";
    for (const [id, chip] of chipOf) {
      chip.classList.toggle("map-holds", held.has(id));
      if (!held.has(id) || pane.left < from.right || centre[1] < 0 || centre[1] > height) continue;
      const r = edges(chip), x = centre[0] + from.left - all.left, y = centre[1] + from.top - all.top, tx = r.left - all.left, ty = max(pane.top, min(pane.bottom, r.top + r.height / 2)) - all.top, bend = max(30, (tx - x) / 2);
      paths += `<path d="M${x} ${y}C${x + bend} ${y} ${tx - bend} ${ty} ${tx} ${ty}"/>`;
    }
    if (told !== paths) arcs.innerHTML = told = paths;
  }
  function words(pool, block, holders) {
    const names = holders.map(([seq]) => hub.nameOf(seq.id)), out = [pool.name, t("map_block", block), t(`map_s_${pool.state(block)}`)];
    if (names.length) out.push(t("map_held_by", pool.refs[block], names.slice(0, 8).join(", ") + (names.length > 8 ? " \u2026" : "")));
    if (pool.fill[block]) out.push(t("map_slots", pool.fill[block], pool.size));
    return out.join(" \u00b7 ");
  }
  function people(state) {
    const live = state.seqs.filter(q => q && (state.live(q) || q.segments.some(s => s.blocks.length))), shown = new Map(live.slice(0, 100).map(q => [q.id, q]));
    for (const [id, chip] of chipOf) if (!shown.has(id)) { chip.remove(); chipOf.delete(id); }
    for (const [id, seq] of shown) {
      const on = hub.agent === id && lit.size > 0, name = hub.nameOf(id), told = `${seq.state} ${on} ${name}`;
      let chip = chipOf.get(id);
      if (!chip) { chip = el("button", { class: "map-chip", onclick: () => lightHolder(hub, hub.agent === id && lit.size ? null : id) }); chipOf.set(id, chip); rest.before(chip); }
      if (chip.told === told) continue;
      chip.told = told; chip.ariaPressed = String(on);
      chip.replaceChildren(seq.parent < 0 ? MAP_KINDS[seq.kind] || "\u25cf" : "\u25d0", el("b", { title: name }, name), el("i", {}, t(`map_s_${seq.state}`)));
    }
    rest.textContent = live.length > 100 ? t("map_more", live.length - 100) : live.length ? "" : t("map_nobody");
  }

  // --- pointer and keys
  const listen = (node, name, f, more) => node.addEventListener(name, f, { signal: life.signal, ...more });
  const hover = to => { if (hub.hover?.pool !== to?.pool || hub.hover?.block !== to?.block) { hub.hover = to; hub.emit("hover", to); again(); } };
  listen(canvas, "pointermove", e => hover(hit(e.clientX, e.clientY)));
  listen(canvas, "pointerleave", () => hover(null));
  listen(canvas, "click", e => { const to = hit(e.clientX, e.clientY); if (to) { here = to; hub.setPin({ ...to }); } });
  listen(canvas, "focus", again); listen(canvas, "blur", again); listen(chips, "scroll", again);
  listen(box, "scroll", redraw); listen(window, "resize", redraw);
  listen(forced, "change", () => { look = null; redraw(); });
  listen(less, "click", () => enlarge(zoom - 1)); listen(more, "click", () => enlarge(zoom + 1)); listen(all, "click", () => enlarge(0));
  listen(whole, "click", () => { whole.ariaPressed = String(whole.ariaPressed !== "true"); redraw(); });
  listen(box, "wheel", e => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    enlarge(zoom + (e.deltaY < 0 ? 1 : -1), hit(e.clientX, e.clientY), e.clientY - edges(box).top);
  }, { passive: false });
  function enlarge(to, keep = here || hub.pin, y = height / 2) { // the block `keep` stays where it is
    zoom = max(-6, min(8, to)); redraw();
    const b = zoom && get(keep);
    if (b) { box.scrollTop += place(b, keep.block)[1] - y; redraw(); }
  }
  listen(canvas, "keydown", e => {
    const used = bands.filter(b => b.shown), b = get(here) || used[0], i = used.indexOf(b), { key } = e, page = { PageDown: 1, PageUp: -1 }[key];
    if (e.ctrlKey || e.metaKey || e.altKey || !b) return;
    const by = { ArrowRight: b.k, ArrowLeft: -b.k, ArrowDown: b.k * b.cols, ArrowUp: -b.k * b.cols }[key];
    if (by || page) {
      const to = get(here) ? here.block + (by || 0) : 0, next = page ? used[i + page] : to < 0 ? used[i - 1] : to >= b.shown ? used[i + 1] : null;
      here = { pool: (next || b).name, block: next ? (by < 0 ? next.shown - 1 : 0) : max(0, min(b.shown - 1, to)) };
      hub.hover = null; where(here.pool, here.block); hub.say(line.textContent);
    } else if ((key === "Enter" || key === " ") && get(here)) { hub.setPin({ ...here }); hub.say(t("map_pinned", here.block)); }
    else if (key === "Escape" && hub.pin) { hub.setPin(null); hub.say(t("map_unpinned")); }
    else return;
    e.preventDefault(); e.stopPropagation();
  });
  function redraw() { drawn = ""; draw(hub.state()); }
  const offs = [sharp(box, redraw), hub.on("lit", () => {
    lit = new Map();
    for (const key of hub.lit) { const cut = key.lastIndexOf(":"), name = key.slice(0, cut); if (!lit.has(name)) lit.set(name, []); lit.get(name).push(+key.slice(cut + 1)); }
    for (const list of lit.values()) list.sort((a, b) => a - b);
  })];
  function destroy() { life.abort(); offs.forEach(off => off()); cancelAnimationFrame(timer); clearTimeout(timer); root.replaceChildren(); }
  return part;
}
