// Every block of every pool: cells while they fit, then dots, one pixel a block, tiles of blocks.
import { COPIED, COMMANDED, poolAt, blocksOf } from "./wire.js";
import { sum } from "./state.js";
import { KIND } from "./hub.js";
import { fit, sharp } from "./dom.js";
import { CELL, HEAD, TIERS, FLASH, mapPen, mapPaint, mapLegend } from "./map_look.js";
import { mapBlocks } from "./map_blocks.js";
import { holdersOf, mapEdges, mapPeople } from "./map_people.js";

const SIZES = [1, 2, 4, 7, 13, 18, 32, 44]; // pixels a block, by level; below 0, 2 ** -level blocks a pixel

export function blockMap(root, hub) {
  const t = hub.words("map"), { min, max, ceil } = Math, { fold, still, projector } = hub,
    life = new AbortController(),
    press = (key, text) => `<button title="${t(key)}" aria-label="${t(key)}">${text}</button>`;
  root.innerHTML =
    `<div class="map-bar"><h3>${t("title")}</h3>${press("out", "−")}${press("in", "+")}` +
    `${press("fit_all", t("fit"))}<button aria-pressed="false">${t("whole")}</button></div>` +
    `<div class="map-body"><div class="map-box"><div><div class="map-view"><canvas></canvas>` +
    `<canvas tabindex="0" role="application" aria-label="${t("label")}"></canvas></div></div></div>` +
    `<div class="map-chips" role="group" aria-label="${t("holders")}"><small></small></div>` +
    `<svg class="map-arcs" aria-hidden="true"></svg></div>` +
    `<div class="map-line"></div><div class="map-legend"></div><i class="map-probe"></i>`;
  const [box, view, line, chips] = ["box", "view", "line", "chips"].map(x => root.querySelector(".map-" + x)),
    [base, canvas] = view.children, [less, more, all, whole] = root.querySelectorAll("button"),
    pen = base.getContext("2d"), top = canvas.getContext("2d"), look = {}, { rect, frame, write } = mapPen(top, look),
    block = mapBlocks(hub, t, look, place, pen), { people, link, words, chipOf } = mapPeople(hub, t, box, chips),
    forced = matchMedia("(forced-colors: active)"),
    tallest = projector ? 560 : 420, last = still ? 4000 : 600; // pixels; how long a flash lasts
  let bands = [], drawn, at = 0, end, // `drawn`, `at`, `end`: of what was drawn last
    zoom = 0, width, height, here, flashes = [], timer, lit, keys; // `here`: where the keys are

  // --- where everything is: a band for each pool, its blocks as large as there is room for
  function size(b) { // a band at its level
    b.size = SIZES[max(0, b.level)]; b.k = 2 ** max(0, -b.level); // blocks a pixel
    b.cols = max(1, (width - 8) / b.size | 0);
    b.rows = ceil(b.shown / b.k / b.cols);
    b.foot = HEAD + b.rows * b.size;
    b.tall = b.foot + (b.more ? 26 : 10);
  }
  function renew(state) { // those that are drawn already stay the same objects
    const free = whole.ariaPressed === "true", order = Object.keys(TIERS);
    bands = [...state.pools].map(([id, pool]) => {
      const b = bands.find(b => b.id === id) || { id }, { name, tier, count, high } = pool;
      return Object.assign(b, {
        pool, name, width, tier: TIERS[tier] ? tier : "common", level: projector ? 7 : 6,
        was: b.shown, shown: free ? count : high, more: !free && count > high,
      });
    }).sort((a, b) => order.indexOf(a.tier) - order.indexOf(b.tier));
    bands.forEach(size);
  }
  function layout(state) { // gives what a picture depends on besides the books
    renew(state);
    for (let n = 0; n < 99 && sum(bands, b => b.tall) > tallest; n++) { // the tallest gets smaller
      const big = bands.reduce((a, b) => (b.rows > 1 && b.tall > (a?.tall || 0) ? b : a), null);
      if (big) { big.level--; size(big); }
    }
    let y = 0;
    for (const b of bands) {
      if (zoom) { b.level = max(-20, min(SIZES.length - 1, b.level + zoom)); size(b); }
      b.top = y; y += b.tall;
    }
    height = max(1, min(y, tallest));
    view.parentNode.style.height = y + "px"; box.style.height = view.style.height = height + "px";
    for (const b of bands) { // the rows in sight
      const from = box.scrollTop - b.top - HEAD, row = y => max(0, min(b.rows, y));
      b.from = row(from / b.size | 0); b.to = row(ceil((from + height) / b.size));
    }
    return [width, height, devicePixelRatio, box.scrollTop,
      bands.map(b => [b.name, b.level, b.rows, b.top, b.shown < b.was])].join();
  }
  function place(b, block) { // the corner of a block, in the view
    const unit = block / b.k | 0;
    return [4 + unit % b.cols * b.size, b.top + HEAD + (unit / b.cols | 0) * b.size - box.scrollTop];
  }
  function hit(clientX, clientY) { // the block at a place of the window
    const r = mapEdges(canvas), x = clientX - r.left - 4, y = clientY - r.top + box.scrollTop - HEAD,
      b = bands.find(b => y >= b.top && y < b.top + b.rows * b.size);
    if (!b || x < 0 || x >= b.cols * b.size) return null;
    const block = (((y - b.top) / b.size | 0) * b.cols + (x / b.size | 0)) * b.k;
    return block < b.shown ? { pool: b.name, block } : null;
  }
  // The band of a {pool, block} that is shown.
  const band = spot => spot && bands.find(b => b.name === spot.pool && spot.block >= 0 && spot.block < b.shown);

  // --- drawing
  // [pool, block, kind] of what happened between the moments `at` and `now`; null: draw all.
  function changes(now) {
    const { words } = fold, a = min(at, now), z = max(at, now), out = [];
    if (a < fold.first || z - a > 2000) return null;
    for (let i = a; i < z; i++) {
      const p = fold.place(i), type = words[p], [from, n, shift] = blocksOf(words, p);
      if (type === COMMANDED && fold.strings[words[p + 3]] === "rollback" || out.length > 30000) return null;
      if (type === COPIED) out.push([words[p + 4], words[p + 5]]);
      for (let j = 0; j < n; j++) out.push([words[p + poolAt(type)], words[from + j] >> shift, { moved: "move" }[fold.kinds.get(i)] || KIND[type]]);
    }
    return out;
  }
  function draw(state) {
    width = box.clientWidth;
    if (!width) return; // out of sight: drawn when it comes back
    if (!look.font) { mapPaint(root, look, forced.matches); drawn = ""; }
    const now = state.index, key = layout(state), list = end === fold.end && changes(now),
      same = key === drawn && list;
    fit(base, width, height);
    if (!same) pen.clearRect(0, 0, width, height);
    for (const b of bands) block(b, state, same);
    if (now !== at) flash(now, now > at && list || []);
    drawn = key; at = now; end = fold.end;
    mapLegend(line.nextSibling, t, look, bands, forced.matches); people(state); over(state);
  }
  function flash(now, list) { // what just happened; those who were refused, at their chips
    const time = performance.now(), no = hub.refusals();
    if (still) flashes = [];
    for (const [id, block, kind] of list) if (FLASH[kind]) flashes.push({ id, block, kind, time });
    flashes = flashes.slice(-300);
    for (const chip of chipOf.values()) chip.classList.remove("map-no");
    if (list.length && no.size) for (const d of fold.decisions)
      if (d && d.at >= at && d.at < now && no.has(d.at)) chipOf.get(d.seq)?.classList.add("map-no");
  }
  function again() { timer = 0; if (width) over(hub.state()); }
  function redraw() { drawn = ""; draw(hub.state()); }

  // --- over the blocks
  function sort(keys) { // what is lit: pool -> its blocks, in order
    lit = Object.create(null);
    for (const key of keys) {
      const cut = key.lastIndexOf(":");
      (lit[key.slice(0, cut)] ||= []).push(+key.slice(cut + 1));
    }
    for (const name in lit) lit[name].sort((a, b) => a - b);
  }
  function light(b, list) {
    const { k, cols, size } = b, unit = i => list[i] / k | 0, row = i => unit(i) / cols | 0, small = size < CELL;
    for (let i = 0; i < list.length; i++) { // a run of neighbours at once
      const first = unit(i), at = row(i);
      let stop = first + 1;
      while (small && i + 1 < list.length && unit(i + 1) <= stop && row(i + 1) === at) stop = unit(++i) + 1;
      if (at < b.from || at >= b.to) continue;
      const [x, y] = place(b, first * k), w = (stop - first) * size;
      if (size > 2) frame(look.light, small ? 1 : 2, x, y, w - 1, size - 1); else rect(look.light, x, y, w, size);
    }
  }
  function ring(b, block, style, thick, grow = 0) { // gives the middle of the block
    const [x, y] = place(b, block), s = b.size, r = max(0, 5 - s / 2 | 0) + grow, side = s - 1 + 2 * r;
    frame(style, thick, x - r + 0.5, y - r + 0.5, side, side);
    return [x + s / 2, y + s / 2];
  }
  function fade(now) { // what flashes
    flashes = flashes.filter(f => now - f.time < last);
    for (const { id, block, kind, time } of flashes) {
      const b = bands.find(b => b.id === id);
      if (!b || block >= b.shown) continue;
      top.globalAlpha = still ? 1 : 1 - (now - time) / last;
      const [x, y] = ring(b, block, look[kind], 3), r = max(b.size, 10) / 2 - 4;
      if (b.size < CELL && flashes.length > 40) continue;
      rect(look.dark, x + r - 5, y + r - 5, 10, 10);
      write(FLASH[kind], x + r, y + r + 0.5, "700 10px", look[kind]);
    }
    top.globalAlpha = 1;
    if (flashes.length && !timer) timer = still ? setTimeout(again, last) : requestAnimationFrame(again);
  }
  function over(state) { // what is lit, flashes, the pin, the keys, the pointer; the last of these in words
    const { pin, hover } = hub;
    fit(canvas, width, height).clearRect(0, 0, width, height);
    if (keys !== hub.lit) sort(keys = hub.lit);
    for (const b of bands) light(b, lit[b.name] || []);
    fade(performance.now());
    const pinned = band(pin), under = band(hover), mine = root.getRootNode().activeElement === canvas && band(here);
    let spot = pin, centre = [];
    if (pinned) { ring(pinned, pin.block, look.dark, 6, 2); centre = ring(pinned, pin.block, look.new, 3, 2); }
    if (mine) {
      top.setLineDash([3, 2]);
      spot = here; centre = ring(mine, here.block, look.light, 2, 2);
      top.setLineDash([]);
    }
    if (under) { spot = hover; centre = ring(under, hover.block, look.light, 1.5); }
    const { id, pool } = band(spot) || {}, holders = pool ? holdersOf(state, id, spot.block) : [];
    line.textContent = pool ? words(pool, spot.block, holders) : t("hint");
    link(holders, centre, height);
  }

  // --- pointer and keys
  function where(pool, block) { // scrolls there
    const b = band({ pool, block });
    if (!b) return null;
    const half = b.size / 2, y = place(b, block)[1], below = y + b.size - height;
    if (y < 0) box.scrollTop += y - HEAD; else if (below > 0) box.scrollTop += below + 6;
    redraw();
    const r = mapEdges(canvas), [left, top] = place(b, block);
    return { x: r.left + left + half, y: r.top + top + half };
  }
  function enlarge(to, keep = here || hub.pin, y = height / 2) { // the block `keep` stays where it is
    zoom = max(-6, min(8, to)); redraw();
    const b = zoom && band(keep);
    if (b) { box.scrollTop += place(b, keep.block)[1] - y; redraw(); }
  }
  function walk(b, used, to, by, page) { // the keys go to a block of this band, or to another band
    const way = page || (to < 0 ? -1 : to >= b.shown ? 1 : 0), next = way && used[used.indexOf(b) + way],
      block = next ? (by < 0 ? next.shown - 1 : 0) : max(0, min(b.shown - 1, to)), pool = (next || b).name;
    here = { pool, block }; hub.hover = null;
    where(pool, block); hub.say(line.textContent);
  }
  function hover(to) {
    if (JSON.stringify(hub.hover) === JSON.stringify(to)) return;
    hub.hover = to; again();
  }
  const under = e => hit(e.clientX, e.clientY), pin = to => { here = to; hub.setPin({ ...to }); };
  canvas.onpointermove = e => hover(under(e)); canvas.onpointerleave = () => hover(null);
  canvas.onclick = e => { const to = under(e); if (to) pin(to); };
  canvas.onfocus = canvas.onblur = chips.onscroll = again; box.onscroll = redraw;
  less.onclick = () => enlarge(zoom - 1); more.onclick = () => enlarge(zoom + 1); all.onclick = () => enlarge(0);
  whole.onclick = () => { whole.ariaPressed = whole.ariaPressed !== "true"; redraw(); };
  box.onwheel = e => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    enlarge(zoom + (e.deltaY < 0 ? 1 : -1), under(e), e.clientY - mapEdges(box).top);
  };
  canvas.onkeydown = e => {
    const { key } = e, used = bands.filter(b => b.shown), mine = band(here), b = mine || used[0];
    if (e.ctrlKey || e.metaKey || e.altKey || !b) return;
    const page = { PageDown: 1, PageUp: -1 }[key], row = b.k * b.cols,
      by = { ArrowRight: b.k, ArrowLeft: -b.k, ArrowDown: row, ArrowUp: -row }[key];
    if (by || page) walk(b, used, mine ? here.block + (by || 0) : 0, by, page);
    else if ((key === "Enter" || key === " ") && mine) { pin(here); hub.say(t("pinned", here.block)); }
    else if (key === "Escape" && hub.pin) { hub.setPin(null); hub.say(t("unpinned")); }
    else return;
    e.preventDefault(); e.stopPropagation();
  };
  addEventListener("resize", redraw, life); // as long as life.signal is not aborted
  forced.addEventListener("change", () => { look.font = ""; redraw(); }, life);
  const unsharp = sharp(box, redraw);
  function destroy() { width = 0; life.abort(); unsharp(); root.replaceChildren(); }
  return { draw, hit, where, redraw, destroy };
}
