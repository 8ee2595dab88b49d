// A log in the browser: everything received so far, keyframes, and the books at the cursor.
import { COPIED, sizeOf, blocksOf, poolAt, decode } from "./wire.js";
import { State, sum } from "./state.js";
import { reduce } from "./reduce.js";
import { restore } from "./keyframe.js";

export class Fold {
  constructor({ budget = 96 << 20, spacing = 4096 } = {}) {
    Object.assign(this, { budget, spacing, strings: [], pieces: new Map(), about: {} });
    this.words = new Int32Array(1 << 14); this.used = 0;
    this.offsets = new Int32Array(1 << 12); this.first = 0; this.length = 0;
    this.table = new Int32Array(1 << 12); this.numTokens = 0; this.extra = [];
    this.decisions = []; this.firstDecision = 0; this.explained = new Map(); this.errors = {};
    this.end = new State(this.strings);
    this.frames = [];
    this.series = []; // rows of State.row, one an event, thinned when there are very many
    this.thin = 1; this.sampled = 0; this.loose = false;
    this.cursor = null;
  }
  grow(name, need) {
    if (need > this[name].length) {
      const to = new Int32Array(Math.max(need, 2 * this[name].length));
      to.set(this[name]); this[name] = to;
    }
  }
  // Take in a message; false: it does not follow what is here, ask again from `length`.
  push(m) {
    const known = m.keyframe && m.from <= this.length && this.length > 0; // nothing new in it
    if ((m.stringsFrom || 0) > this.strings.length || (m.tokensFrom || 0) > this.numTokens) return false;
    if (m.from > this.length && !m.keyframe) return false;
    Object.assign(this.about, m.about);
    (m.strings || []).forEach((s, i) => { this.strings[m.stringsFrom + i] = s; });
    (m.pieces || []).forEach(([id, bytes]) => this.pieces.set(id, bytes));
    if (m.tokens) {
      this.grow("table", m.tokensFrom + m.tokens.length);
      this.table.set(m.tokens, m.tokensFrom);
      this.numTokens = Math.max(this.numTokens, m.tokensFrom + m.tokens.length);
    }
    if (m.keyframe && !known) this.begin(m.keyframe, m.from);
    if (m.decisions?.length && !this.decisions.length) this.firstDecision = m.decisions[0].number;
    for (const d of m.decisions || []) this.decisions[d.number] = d;
    for (const e of m.explained || []) this.explained.set(e.number, e);
    Object.assign(this.errors, m.errors);
    let at = 0, index = m.from;
    for (; at < m.words.length && index < this.length; index++) at += sizeOf(m.words, at); // known
    this.take(m.words.subarray(at));
    return true;
  }
  begin(words, index) { // again, from the books at `index`; the tables stay
    Object.assign(this, { first: index, length: index, used: 0, frames: [], series: [], thin: 1, sampled: index, loose: false, cursor: null });
    this.end = new State(this.strings);
    restore(this.end, words, this.extra);
    this.end.index = index;
    this.save();
  }
  take(words) {
    if (!words.length) return;
    if (this.loose) this.series.pop();
    this.grow("words", this.used + words.length);
    this.words.set(words, this.used);
    const end = this.end, all = this.words, stop = this.used + words.length;
    if (this.length === this.first && !this.frames.length) this.save();
    for (let at = this.used; at < stop;) {
      const i = this.length - this.first;
      if (i >= this.offsets.length) this.grow("offsets", i + 1);
      this.offsets[i] = at;
      reduce(end, all, at);
      at += sizeOf(all, at);
      this.length++;
      if (this.length - this.sampled >= this.thin) this.sample();
      if (this.length - this.frames[this.frames.length - 1].index >= this.spacing) this.save();
    }
    this.used = stop;
    this.loose = this.sampled < this.length; // the newest row is of the last event, whatever is left out
    if (this.loose) this.series.push(this.end.row());
  }
  sample() {
    this.series.push(this.end.row());
    this.sampled = this.length;
    if (this.series.length > 20000) { this.series = this.series.filter((_, i) => i % 2 === 0); this.thin *= 2; }
  }
  save() {
    const frame = this.end.copy();
    this.frames.push(frame);
    while (this.frames.length > 2 && sum(this.frames, f => f.bytes()) > this.budget) { // too many:
      this.frames = this.frames.filter((_, i) => i % 2 === 0); // every second one, and rarer
      this.spacing *= 2;
    }
  }
  // The books when `index` events had happened. The state belongs to the fold: read it, then go on.
  at(index) {
    index = Math.max(this.first, Math.min(index, this.length));
    if (index === this.length) return this.end;
    let lo = 0, hi = this.frames.length - 1;
    while (lo < hi) { const mid = (lo + hi + 1) >> 1; if (this.frames[mid].index <= index) lo = mid; else hi = mid - 1; }
    const frame = this.frames[lo];
    if (!this.cursor || this.cursor.index > index || this.cursor.index < frame.index) {
      this.cursor = frame.copy(this.cursor || new State(this.strings));
    }
    for (let i = this.cursor.index; i < index; i++) reduce(this.cursor, this.words, this.offsets[i - this.first]);
    return this.cursor;
  }
  type(index) { return this.words[this.offsets[index - this.first]]; }
  event(index) {
    if (index < this.first || index >= this.length) return null;
    return { ...decode(this.words, this.offsets[index - this.first], this.strings), index };
  }
  // The next index after `from` (step -1: before it) whose event `wanted(type, index)` accepts.
  find(from, wanted, step = 1) {
    for (let i = from; i >= this.first && i < this.length; i += step) if (wanted(this.type(i), i)) return i;
    return -1;
  }
  // Every event that touched a block, in order; `pool` is the pool's name.
  history(pool, block, limit = 200) {
    const out = [], id = this.strings.indexOf(pool);
    for (let i = this.first; i < this.length; i++) {
      const at = this.offsets[i - this.first], type = this.words[at];
      const here = this.words[at + poolAt(type)] === id, copied = type === COPIED && this.words[at + 4] === id && this.words[at + 5] === block;
      if (!here && !copied) continue;
      const [from, n, shift] = blocksOf(this.words, at);
      let hit = copied;
      for (let j = 0; j < n && !hit; j++) hit = this.words[from + j] >> shift === block;
      if (hit) out.push(this.event(i));
      if (out.length > limit) out.shift();
    }
    return out;
  }
  // The bytes of tokens [start, start + count) of a segment, as pieces with their token ids.
  tokensOf(seg, start, count) {
    const out = [];
    for (const [offset, n] of seg.ranges) {
      for (let i = Math.max(0, start); i < Math.min(n, start + count); i++)
        out.push(offset < 0 ? this.extra[-1 - offset + i] : this.table[offset + i]);
      start -= n;
    }
    return out.slice(0, count);
  }
  // Text of token ids; tokens that split a character are one piece. Gives [text, first, count].
  textOf(tokens) {
    const out = [], decoder = new TextDecoder("utf-8", { fatal: true });
    let held = [], first = 0;
    const put = text => { out.push([text, first, held.length]); first += held.length; held = []; };
    for (const token of tokens) {
      if (token < 0) { if (held.length) put("\ufffd"); held = [token]; put("\u2592"); continue; }
      held.push(token);
      const bytes = Uint8Array.from(held.flatMap(t => [...(this.pieces.get(t) || [63])]));
      try { put(decoder.decode(bytes)); } catch { if (held.length > 4) put(new TextDecoder().decode(bytes)); }
    }
    if (held.length) put("\ufffd");
    return out;
  }
}
