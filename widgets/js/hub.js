// What the parts of a dashboard share: one log, one cursor, one selection, one language.
import { STEPPED, SHARED, ALLOCATED, COPIED, EVICTED, FREED, PUBLISHED, ABORTED, COMMANDED } from "./wire.js";

// Things to jump to: what each is called, and which events it means.
export const JUMPS = {
  copy: h => type => type === COPIED,
  share: h => type => type === SHARED,
  evict: h => type => type === EVICTED,
  free: h => type => type === FREED,
  abort: h => type => type === ABORTED,
  fail: h => (type, i) => type === COMMANDED && h.fold.event(i).verb === "fail",
};
export const REFUSALS = ["refused", "no room"]; // outcomes to jump to as "refuse": they have no event
export const KIND = { [SHARED]: "share", [ALLOCATED]: "new", [COPIED]: "copy", [EVICTED]: "evict", [FREED]: "free", [PUBLISHED]: "publish", [ABORTED]: "abort" };

export class Hub {
  constructor(fold, strings, { lang = "en", projector = false, ask = null, command = null } = {}) {
    Object.assign(this, { fold, strings, lang, projector, ask, command });
    this.cursor = fold.length; this.mode = "follow"; // follow, paused, play or loop
    this.unit = "event"; this.rate = 10; // what play and the arrow keys step by
    this.pin = this.hover = this.decision = this.agent = null;
    this.lit = new Set(); // "pool:block" that a part wants lit
    this.lab = {}; // what the kernel says of the lab: paused, running, closed, speed
    this.parts = []; this.dirty = true; this.frame = 0; this.listeners = new Map();
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  }
  // A string of the table in the language of the view; {0}, {1} stand for what is passed.
  t(key, ...args) {
    const row = this.strings[key], text = row ? row[this.lang === "zh" ? 1 : 0] : key;
    return text.replace(/\{(\d)\}/g, (_, i) => args[i] ?? "");
  }
  on(name, listener) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(listener);
    return () => this.listeners.get(name).delete(listener);
  }
  emit(name, value) { for (const f of this.listeners.get(name) || []) f(value); }
  // Every change ends here: parts are drawn once in the next frame of the page.
  change(grown = false) { // grown: nothing but that the log is longer
    this.grown = grown && (this.grown || !this.dirty);
    this.dirty = true;
    if (!this.frame && this.alive !== false) this.frame = requestAnimationFrame(now => this.draw(now));
  }
  draw(now) {
    this.frame = 0;
    if (this.alive === false) return;
    this.play(now);
    if (!this.dirty) return;
    this.dirty = false;
    const state = this.state(), { grown } = this;
    this.grown = false;
    for (const part of this.parts) {
      if (grown && now < part.rest) { this.later ||= setTimeout(() => { this.later = 0; this.change(true); }, part.rest - now); continue; }
      const start = performance.now();
      part.draw(state);
      if (part.pace) part.rest = now + Math.min(300, Math.max(part.pace, 20 * (performance.now() - start)));
    }
  }
  state() { return this.fold.at(this.cursor); }
  received() { // the log has grown
    if (this.mode === "follow") this.cursor = this.fold.length;
    if (this.cursor < this.fold.first) this.cursor = this.fold.first;
    this.emit("received"); this.change(true);
  }
  seek(index, mode = "paused") {
    this.cursor = Math.max(this.fold.first, Math.min(Math.round(index), this.fold.length));
    if (this.mode !== mode) { this.mode = mode; this.emit("mode", mode); }
    this.emit("seek", this.cursor); this.change();
  }
  setMode(mode) {
    if (mode === "follow") return this.seek(this.fold.length, "follow");
    if ((mode === "play" || mode === "loop") && this.cursor >= this.fold.length) this.cursor = this.fold.first;
    this.mode = mode; this.then = null; this.emit("mode", mode); this.change();
  }
  play(now) {
    if (this.mode !== "play" && this.mode !== "loop") return;
    const due = this.then ? (now - this.then) * this.rate / 1000 : 1;
    if (due >= 1) {
      this.then = now - (due - Math.floor(due)) * 1000 / this.rate;
      for (let n = Math.min(1000, Math.floor(due)); n > 0 && this.cursor < this.fold.length; n--)
        this.cursor = this.next(1);
      if (this.cursor >= this.fold.length) {
        if (this.mode === "loop") this.cursor = this.fold.first;
        else { this.mode = "paused"; this.emit("mode", "paused"); }
      }
      this.emit("seek", this.cursor); this.dirty = true;
    }
    if (this.mode === "play" || this.mode === "loop") this.frame = requestAnimationFrame(t => this.draw(t));
  }
  // The moment one unit further (or back, -1): an event, a decision or a step of the engine.
  next(way, unit = this.unit) {
    const { fold, cursor } = this, last = way > 0 ? fold.length : fold.first;
    if (unit === "decision") return this.momentOf(this.decisionAt(way)) ?? last;
    if (unit === "token") {
      const i = fold.find(way > 0 ? cursor : cursor - 2, type => type === STEPPED, way);
      return i < 0 ? last : i + 1;
    }
    return Math.max(fold.first, Math.min(cursor + way, fold.length));
  }
  step(way, unit) { this.seek(this.next(way, unit)); }
  // The decision after (before) the cursor, of those that `wanted` accepts; null: there is none.
  decisionAt(way, wanted = null) {
    const list = this.fold.decisions, here = this.cursor;
    let lo = this.fold.firstDecision, hi = list.length; // the first whose moment is after the cursor
    while (lo < hi) { const mid = (lo + hi) >> 1; if (this.momentOf(list[mid]) > here) hi = mid; else lo = mid + 1; }
    let n = way > 0 ? lo : lo - 1;
    if (this.decision !== null && this.momentOf(list[this.decision]) === here) n = this.decision + way;
    else while (way < 0 && list[n] && this.momentOf(list[n]) === here) n--;
    while (list[n] && wanted && !wanted(list[n])) n += way;
    return list[n] || null;
  }
  momentOf(decision) { return decision ? decision.stop : undefined; } // when its events have happened
  selectDecision(number) {
    const d = this.fold.decisions[number];
    if (!d) return;
    this.decision = number;
    this.seek(this.momentOf(d));
    this.emit("decision", number);
  }
  refusals() { // log index -> the refusal made there
    const list = this.fold.decisions;
    if (!this.no || this.numSeen > list.length) { this.no = new Map(); this.numSeen = this.fold.firstDecision; }
    for (; this.numSeen < list.length; this.numSeen++) {
      const d = list[this.numSeen];
      if (d && REFUSALS.includes(d.outcome)) this.no.set(d.at, d); // a bounded log may have lost some
    }
    return this.no;
  }
  jump(kind, way = 1) { // to just after the next (last) event of a kind; false: there is none
    if (kind === "refuse") {
      const d = this.decisionAt(way, d => REFUSALS.includes(d.outcome));
      if (d) this.selectDecision(d.number);
      return !!d;
    }
    const wanted = JUMPS[kind](this), i = this.fold.find(way > 0 ? this.cursor : this.cursor - 2, wanted, way);
    if (i >= 0) this.seek(i + 1);
    return i >= 0;
  }
  setPin(pin) { this.pin = pin; this.emit("pin", pin); this.change(); }
  light(blocks) { this.lit = new Set(blocks); this.emit("lit"); this.change(); }
  say(text) { this.emit("say", text); } // to those who listen instead of looking
  // Names of holders as people tell them apart: forks have their agent's name.
  nameOf(id) {
    const seq = this.fold.end.seqs[id];
    return !seq ? `#${id}` : seq.parent >= 0 ? `${seq.name} (${this.t("fork")} ${id})` : seq.name;
  }
  bytes(blocks, size) { return blocks * size * (this.fold.about.bytes_per_token || 0); }
  stop() {
    this.alive = false;
    cancelAnimationFrame(this.frame);
    clearTimeout(this.later);
    for (const part of this.parts) part.destroy?.();
    this.parts = [];
    this.emit("stop");
    this.listeners.clear();
  }
}

export function el(tag, attributes = {}, ...children) { // an element with attributes and children
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
    else if (k === "class") node.className = v;
    else if (v === true) node.setAttribute(k, "");
    else if (v !== false && v != null) node.setAttribute(k, v);
  }
  node.append(...children.filter(c => c != null));
  return node;
}

export const mib = bytes => bytes < 2 ** 20 ? `${+(bytes / 1024).toFixed(1)} KiB` : bytes < 8 * 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;

// A canvas that is as sharp as the screen; draws again when its size or its visibility changes.
export function sharp(canvas, redraw) {
  const seen = new IntersectionObserver(e => { if (e.some(x => x.isIntersecting)) redraw(); });
  const sized = new ResizeObserver(redraw);
  seen.observe(canvas); sized.observe(canvas);
  return () => { seen.disconnect(); sized.disconnect(); };
}
export function fit(canvas, width, height) { // CSS pixels; gives a context in CSS pixels
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
