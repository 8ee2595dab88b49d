// What the parts of a dashboard share: one log, one cursor, one selection, one language.
import { STEPPED, SHARED, ALLOCATED, COPIED, EVICTED, FREED, PUBLISHED, ABORTED, COMMANDED } from "./wire.js";
import { clamp } from "./state.js";

// Things to jump to: what each is called, and its events (of the commands, those that say "fail"; a
// share is one in place, a shift one at a shift).
const JUMPS = { copy: COPIED, share: SHARED, shift: SHARED, evict: EVICTED, fail: COMMANDED };
export const REFUSALS = ["refused", "no room"], // outcomes to jump to as "refuse": they have no event
  KIND = { [SHARED]: "share", [ALLOCATED]: "new", [COPIED]: "copy", [EVICTED]: "evict", [FREED]: "free", [PUBLISHED]: "publish", [ABORTED]: "abort" };

export class Hub {
  mode = "follow"; // follow, paused, play or loop
  unit = "event"; rate = 10; // what play and the arrow keys step by
  pin = null; hover = null; decision = null; agent = null;
  lit = new Set(); // "pool:block" that a part wants lit
  lab = {}; // what the kernel says of the lab: paused, running, closed, speed
  parts = []; dirty = true; frame = 0; listeners = {};
  still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  constructor(fold, strings, { lang = "en", projector = false, ask = null, command = null } = {}) {
    Object.assign(this, { fold, strings, lang, projector, ask, command, cursor: fold.length });
  }
  // A string of the table in the language of the view; {0}, {1} stand for what is passed.
  t(key, ...args) {
    const row = this.strings[key], text = row ? row[this.lang === "zh" ? 1 : 0] : key;
    return text.replace(/\{(\d)\}/g, (_, i) => args[i] ?? "")
      .replace(/(?<![\d.,])1 ((more |free )?(agent|block|event|holder|pool|program|slot|step|token|update))s\b/g, "1 $1");
  }
  word(key, text) { return this.strings[key] ? this.t(key) : text; } // where there is such a string
  words(part) { return (key, ...args) => this.t(`${part}_${key}`, ...args); } // a part's own strings
  on(name, listener) {
    const all = this.listeners[name] ||= new Set();
    all.add(listener);
    return () => all.delete(listener);
  }
  emit(name, value) { for (const f of this.listeners[name] || []) f(value); }
  // Every change ends here: parts are drawn once in the next frame of the page.
  change(grown = false) { // grown: nothing but that the log is longer
    this.grown = grown && (this.grown || !this.dirty);
    this.dirty = true;
    if (!this.frame && this.alive !== false) this.frame = requestAnimationFrame(now => this.draw(now));
  }
  draw(time) {
    this.frame = 0;
    if (this.alive === false) return;
    this.play(time);
    if (!this.dirty) return;
    this.dirty = false;
    const state = this.state(), { grown, root } = this, had = root?.matches(":focus-within");
    this.grown = false;
    for (const part of this.parts) {
      if (grown && time < part.rest) { this.later ||= setTimeout(() => { this.later = 0; this.change(true); }, part.rest - time); continue; }
      const start = performance.now();
      part.draw(state);
      if (part.pace) part.rest = time + clamp(20 * (performance.now() - start), part.pace, 300);
    }
    const now = document.activeElement; // keys go on to work when what had the focus is gone
    if (had && (now === document.body || now.disabled || !now.checkVisibility())) root.focus({ preventScroll: true });
  }
  state() { return this.fold.at(this.cursor); }
  received() { // the log has grown
    if (this.mode === "follow") this.cursor = this.fold.length;
    this.cursor = Math.max(this.cursor, this.fold.first);
    this.emit("received"); this.change(true);
  }
  seek(index, mode = "paused") {
    this.cursor = clamp(Math.round(index), this.fold.first, this.fold.length);
    this.mode = mode;
    this.emit("seek"); this.change();
  }
  setMode(mode) {
    if (mode === "follow") return this.seek(this.fold.length, "follow");
    if (mode !== "paused" && this.cursor >= this.fold.length) this.cursor = this.fold.first;
    this.mode = mode; this.then = null; this.change();
  }
  get moves() { return /play|loop/.test(this.mode); }
  play(now) {
    if (!this.moves) return;
    const due = this.then ? (now - this.then) * this.rate / 1000 : 1;
    if (due >= 1) {
      this.then = now - (due - Math.floor(due)) * 1000 / this.rate;
      for (let n = Math.min(1000, Math.floor(due)); n > 0 && this.cursor < this.fold.length; n--)
        this.cursor = this.next(1);
      if (this.cursor >= this.fold.length) {
        if (this.mode === "loop" && this.fold.length > this.fold.first) this.cursor = this.fold.first;
        else this.mode = "paused";
      }
      this.emit("seek"); this.dirty = true;
    }
    if (this.moves) this.frame = requestAnimationFrame(t => this.draw(t));
  }
  // The moment one unit further (or back, -1): an event, a decision or a step of the engine.
  next(way, unit = this.unit) {
    const { fold, cursor } = this, last = way > 0 ? fold.length : fold.first;
    if (unit === "decision") return this.decisionAt(way)?.stop ?? last; // when its events have happened
    if (unit === "token") {
      const i = fold.find(way > 0 ? cursor : cursor - 2, type => type === STEPPED, way);
      return i < 0 ? last : i + 1;
    }
    return clamp(cursor + way, fold.first, fold.length);
  }
  step(way, unit) { this.seek(this.next(way, unit)); }
  // The decision after (before) the cursor, of those that `wanted` accepts; null: there is none.
  decisionAt(way, wanted = () => true) {
    const list = this.fold.decisions, here = this.cursor;
    let lo = this.fold.firstDecision, hi = list.length; // the first whose moment is after the cursor
    while (lo < hi) { const mid = (lo + hi) >> 1; if (list[mid]?.stop > here) hi = mid; else lo = mid + 1; }
    let n = way > 0 ? lo : lo - 1;
    if (this.decision !== null && list[this.decision]?.stop === here) n = this.decision + way;
    else while (way < 0 && list[n] && list[n].stop === here) n--;
    while (list[n] && !wanted(list[n])) n += way;
    return list[n] || null;
  }
  selectDecision(number) {
    const d = this.fold.decisions[number];
    if (!d) return;
    this.decision = number;
    this.seek(d.stop);
  }
  pick(way) { this.selectDecision(this.decisionAt(way)?.number); }
  refusals() { // log index -> the refusal made there
    const list = this.fold.decisions;
    if (!this.no || this.numSeen > list.length) { this.no = new Map(); this.numSeen = this.fold.firstDecision; }
    for (; this.numSeen < list.length; this.numSeen++) {
      const d = list[this.numSeen];
      if (d && REFUSALS.includes(d.outcome)) this.no.set(d.at, d); // a bounded log may have lost some
    }
    return this.no;
  }
  jump(kind, way = 1) { // to just after the next (last) event of a kind; says so if there is none
    const { fold, cursor } = this, wanted = (type, i) => type === JUMPS[kind] && (kind === "fail" ? fold.event(i).verb === kind : fold.kinds.get(i) === { shift: kind }[kind]),
      d = kind === "refuse" && this.decisionAt(way, d => REFUSALS.includes(d.outcome)), i = d ? -1 : fold.find(way > 0 ? cursor : cursor - 2, wanted, way);
    if (d) this.selectDecision(d.number);
    else if (i >= 0) this.seek(i + 1);
    else this.say(this.t(way > 0 ? "bar_no_next" : "bar_no_previous", this.t(`bar_${kind}`)), "note");
  }
  setPin(pin) { this.pin = pin; this.change(); }
  point({ index, decision, pool, block, note, number }) { // to what the kernel speaks of; below 0: to now
    this.looked = number;
    this.decision = decision;
    index < 0 ? this.setMode("follow") : this.seek(index);
    this.setPin(pool ? { pool, block } : null);
    this.emit("told", note);
  }
  light(blocks) { this.lit = new Set(blocks); this.change(); }
  say(text, more) { this.emit("say", text); this.emit(more, text); } // to those who listen instead of looking
  // Names of holders as people tell them apart: forks have their agent's name, others may share one.
  nameOf(id) {
    const { seqs } = this.fold.end, seq = seqs[id], seen = new Set();
    if (this.numNames !== seqs.length) {
      this.numNames = seqs.length;
      this.twice = seqs.filter(q => q?.parent < 0 && seen.size === seen.add(q.name).size).map(q => q.name);
    }
    return !seq ? `#${id}` : seq.parent >= 0 ? `${seq.name} (${this.t("fork")} ${id})` : this.twice.includes(seq.name) ? `${seq.name} #${id}` : seq.name;
  }
  stop() {
    this.alive = false;
    cancelAnimationFrame(this.frame);
    clearTimeout(this.later);
    for (const part of this.parts) part.destroy?.();
    this.parts = [];
    this.emit("stop");
    this.listeners = {};
  }
}

export function runs(list) { // 3, 4, 5, 9 -> "3-5, 9"
  const out = [];
  for (const b of [...list].sort((x, y) => x - y)) { const r = out.at(-1); if (r && r[1] === b - 1) r[1] = b; else out.push([b, b]); }
  return out.slice(0, 6).map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ") + (out.length > 6 ? " …" : "");
}
