// Draws the blocks of a band: cells with numbers and marks, dots, or a pixel for one block or many.
import { CACHED, PROMISED } from "./pool.js";
import { CELL, MAP_BIG, HEAD, TIERS, mapPen } from "./map_look.js";

export function mapBlocks(hub, t, look, place, pen) {
  const { rect, frame, write } = mapPen(pen, look), { min, max, ceil } = Math;

  // A band's name, what its tier is for and how full it is; below it, how much was never used.
  function heading(b) {
    const { pool, tier, k } = b, n = x => x.toLocaleString(),
      unit = b.size > 1 ? "" : " · " + t(k > 1 ? "tiles" : "pixels", k),
      all = t("counts", n(pool.held), n(pool.cached), n(pool.free), pool.size) + unit,
      more = b.more ? t(pool.high ? "never" : "unused", n(pool.count - pool.high)) : "";
    if (b.told === all + more) return;
    b.told = all + more;
    const y = place(b, 0)[1] - HEAD, px = hub.projector ? 16 : 13, about = t("about_" + tier),
      put = (words, x, style, font = "") => { // gives where the next words may start
        write(words, x, y + 14, `${font} ${px}px`, style, "left");
        return x + pen.measureText(words).width + 9;
      };
    pen.clearRect(0, y, b.width, HEAD); pen.clearRect(0, y + b.foot, b.width, b.tall - b.foot);
    const x = put(b.name, put(TIERS[tier], 4, look[tier].hue) - 2, look.light, "600");
    pen.font = `${px}px ${look.font}`;
    let text = all; // as much of it as there is room for
    while (x + pen.measureText(text).width > b.width && text.includes(" · ")) text = text.slice(0, text.lastIndexOf(" · "));
    const start = max(x, b.width - 4 - pen.measureText(text).width);
    if (x + pen.measureText(about).width + 16 < start) put(about, x, look.dim);
    put(text, start, look.dim);
    write(more, 4, y + b.foot + 10, `${px - 1}px`, look.dim, "left");
  }

  // --- dots and pixels
  // Colours of blocks [from, to), `k` of them a pixel: the highest refcount wins.
  function pixels({ refs, flags, high }, lut, out, at, from, to, k) {
    let b = from;
    for (const stop = min(to, high); b < stop; b += k) {
      let most = refs[b], kept = flags[b];
      if (k > 1) for (let c = b + 1, end = min(b + k, stop); c < end; c++) {
        if (refs[c] > most) most = refs[c];
        kept |= flags[c];
      }
      out[at++] = lut[most ? (most < 99 ? most : 99) : kept & CACHED ? 100 : 0];
    }
    for (; b < to; b += k) out[at++] = lut[0];
  }
  function marks({ pool, size, cols }, from, to, y) { // lines between dots, marks on dots
    const n = to - from, bite = size - 2 >> 1;
    for (let c = 1; c <= cols; c++) rect(look.dark, 3 + c * size, y, 1, n * size);
    for (let r = 1; r <= n; r++) rect(look.dark, 4, y + r * size - 1, cols * size, 1);
    for (let i = from * cols; i < min(to * cols, pool.high); i++) {
      const held = pool.refs[i], x = 4 + i % cols * size, top = y + ((i / cols | 0) - from) * size;
      if (!held && pool.flags[i] & CACHED) rect(look.dark, x + 1, top + 1, size - 3, size - 3);
      else if (held && pool.flags[i] & PROMISED)
        for (let d = 0; d < size - 1; d++) rect(look.light, x + d, top + size - 2 - d, 1, 1);
      if (pool.shifted[i]) rect(look.dark, x, top + bite, bite, bite);
    }
  }
  function rows(b, from, to) {
    const { size, cols, k, ink } = b, n = to - from, y = place(b, from * cols * k)[1];
    if (n <= 0) return;
    ink.putImageData(b.image, 0, 0, 0, from - b.from, cols, n);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(ink.canvas, 0, from - b.from, cols, n, 4, y, cols * size, n * size);
    if (size > 2) marks(b, from, to, y);
    const used = ceil(b.shown / k) - (b.rows - 1) * cols; // of the last row
    if (to === b.rows) pen.clearRect(4 + used * size, y + (n - 1) * size, (cols - used) * size, size);
  }
  function dots(b, list) { // only the rows of what `list` names
    const { k, cols, from, to, shown } = b, width = cols * k,
      fill = (a, z) =>
      pixels(b.pool, look[b.tier].lut, b.words, (a / k | 0) - from * cols, a - a % k, min(z, shown), k),
      some = (a, z) => { // blocks [a, z), of one row
        const row = a / width | 0;
        if (row >= from && row < to) { fill(a, z); lo = min(lo, row); hi = max(hi, row + 1); }
      };
    let lo = to, hi = from;
    if (!list) {
      b.image = new ImageData(cols, to - from); b.words = new Uint32Array(b.image.data.buffer);
      b.ink = new OffscreenCanvas(cols, to - from).getContext("2d");
      fill(from * width, to * width);
      [lo, hi] = [from, to];
    } else {
      if (b.was < shown) some(b.was, shown);
      for (const [id, block] of list) if (id === b.id) some(block, block - block % k + k);
    }
    rows(b, lo, hi);
  }

  // --- cells
  function signs({ pool, size, tier }, block, ink, x, y) { // on a held block
    const big = size >= MAP_BIG, d = big ? 7 : 4, w = size - 2, fill = pool.fill[block];
    if (size > 17 && (tier === "global" || tier === "group")) { // read-only
      pen.fillStyle = ink; pen.beginPath();
      pen.moveTo(x + w - d, y); pen.lineTo(x + w, y); pen.lineTo(x + w, y + d);
      pen.fill();
    }
    if (pool.shifted[block]) { // torn on the left: a fragment to somebody
      pen.fillStyle = look.dark; pen.beginPath();
      for (let at = y; at < y + w; at += d) { pen.moveTo(x, at); pen.lineTo(x + d / 2, at + d / 2); pen.lineTo(x, at + d); }
      pen.fill();
    }
    if (!big) return;
    if (hub.fold.strings[pool.label[block]]?.includes("agent:")) { // a lock
      rect(ink, x + 5, y + 5, 6, 4); frame(ink, 1, x + 6.5, y + 2.5, 3, 3);
    }
    if (fill < pool.size) { // how full
      rect(look.dark, x, y + w - 4, w, 4); rect(look.light, x, y + w - 3, w * fill / pool.size, 3);
    }
  }
  function cell(b, block, who) {
    const { pool, size } = b, [left, top] = place(b, block), x = left + 1, y = top + 1, w = size - 2,
      centre = x + w / 2, middle = y + w * (who ? 0.36 : 0.5), big = size >= MAP_BIG,
      state = pool.state(block), kept = state === "cached", n = block < pool.high ? pool.refs[block] : 0,
      tier = look[b.tier], fill = tier.fill(n), ink = n ? tier.ink(n) : look.dim,
      px = big ? size * 0.4 | 0 : size - (n > 9 ? 6 : 4);
    pen.clearRect(left, top, size, size);
    if (n) rect(fill, x, y, w, w);
    else {
      pen.setLineDash(kept ? [4, 2] : [1, 3]);
      frame(kept ? look.dim : look.line, 1, x + 0.5, y + 0.5, w - 1, w - 1);
      pen.setLineDash([]);
    }
    if (state === "pending") {
      rect(look.hatch, x, y, w, w); rect(fill, centre - px / 2, middle - px / 2, px, px);
    }
    if (n || kept) write(n > 99 && !big ? "+" : n, centre, middle, `700 ${px}px`, ink);
    if (who) {
      const names = who.length > 4 ? who.slice(0, 3).join("") + "…" : who.join("");
      write(names, centre, y + w * 0.72, `${size * 0.28 | 0}px`, ink);
    }
    if (n) signs(b, block, ink, x, y);
  }
  function cells(b, state) { // those that are not as they were drawn
    const from = b.from * b.cols, to = min(b.to * b.cols, b.shown), { refs, flags, fill, label, shifted } = b.pool, who = [];
    if (b.size >= MAP_BIG) for (const seq of state.seqs) for (const seg of seq?.segments || []) if (seg.pool === b.id && seg.blocks.length) {
      const initial = String.fromCodePoint(seq.name.codePointAt(0) || 63); // of the first five holders
      for (const i of seg.blocks) if (i >= from && i < to && !((who[i] ||= []).length > 4)) who[i].push(initial);
    }
    for (let i = from; i < to; i++) {
      const sign = [refs[i], flags[i], fill[i], label[i], shifted[i], who[i]].join();
      if (b.signs[i] !== sign) { b.signs[i] = sign; cell(b, i, who[i]); }
    }
  }

  return (b, state, list) => { // a band, or what of it changed by `list`, as map.js gives it (null: draw all)
    if (!list) { b.signs = []; b.told = ""; }
    if (b.to > b.from) { if (b.size < CELL) dots(b, list); else cells(b, state); }
    heading(b);
  };
}
