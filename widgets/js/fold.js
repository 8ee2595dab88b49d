// A log in the browser: everything received so far, keyframes, and the books at the cursor.
import { COPIED, sizeOf, blocksOf, poolAt, decode } from "./wire.js";
import { State, clamp, sum } from "./state.js";
import { reduce } from "./reduce.js";
import { restore } from "./keyframe.js";

export const unbase = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

export class Fold {
  strings = []; pieces = new Map(); about = {}; errors = {};
  words = new Int32Array(1 << 14); used = 0;
  offsets = new Int32Array(1 << 12); first = 0; length = 0;
  table = new Int32Array(1 << 12); numTokens = 0; extra = [];
  kinds = new Map(); // events that are one of several kinds of their type: "shift", "moved"
  decisions = []; firstDecision = 0; explained = new Map();
  end = new State(this.strings); frames = []; cursor = null;
  series = []; // rows of State.row, one an event, thinned when there are very many
  thin = 1; sampled = 0; loose = false;
  constructor({ budget = 96 << 20, spacing = 4096 } = {}) { Object.assign(this, { budget, spacing }); }
  grow(name, need) {
    if (need > this[name].length) {
      const to = new Int32Array(Math.max(need, 2 * this[name].length));
      to.set(this[name]); this[name] = to;
    }
  }
  // Take in a message; false: it does not follow what is here, ask again from `length`.
  push({ from, words, keyframe, strings = [], stringsFrom = 0, tokens = [], tokensFrom = 0, pieces = [], decisions = [], explained = [], about, errors }) {
    const news = keyframe && (from > this.length || !this.length), end = tokensFrom + tokens.length;
    if (stringsFrom > this.strings.length || tokensFrom > this.numTokens || from > this.length && !news) return false;
    Object.assign(this.about, about); Object.assign(this.errors, errors);
    strings.forEach((s, i) => { this.strings[stringsFrom + i] = s; });
    for (const [id, text] of pieces) this.pieces.set(id, unbase(text));
    this.grow("table", end);
    this.table.set(tokens, tokensFrom);
    this.numTokens = Math.max(this.numTokens, end);
    if (news) this.begin(keyframe, from);
    if (!this.decisions.length) this.firstDecision = decisions[0]?.number ?? 0;
    for (const d of decisions) this.decisions[d.number] = d;
    for (const e of explained) this.explained.set(e.number, e);
    let at = 0;
    for (let i = from; at < words.length && i < this.length; i++) at += sizeOf(words, at); // known
    this.take(words.subarray(at));
    return true;
  }
  begin(words, index) { // again, from the books at `index`; the tables stay
    Object.assign(this, { first: index, length: index, used: 0, frames: [], kinds: new Map(), series: [], thin: 1, sampled: index, loose: false, cursor: null });
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
    const { end, words: all } = this, stop = this.used + words.length;
    if (this.length === this.first && !this.frames.length) this.save();
    for (let at = this.used; at < stop;) {
      const i = this.length - this.first;
      if (i >= this.offsets.length) this.grow("offsets", i + 1);
      this.offsets[i] = at;
      end.kind = "";
      reduce(end, all, at);
      if (end.kind) this.kinds.set(this.length, end.kind);
      at += sizeOf(all, at);
      this.length++;
      if (this.length - this.sampled >= this.thin) this.sample();
      if (this.length - this.frames.at(-1).index >= this.spacing) this.save();
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
    this.frames.push(this.end.copy());
    while (this.frames.length > 2 && sum(this.frames, f => f.bytes()) > this.budget) { // too many:
      this.frames = this.frames.filter((_, i) => i % 2 === 0); // every second one, and rarer
      this.spacing *= 2;
    }
  }
  // The books when `index` events had happened. The state belongs to the fold: read it, then go on.
  at(index) {
    index = clamp(index, this.first, this.length);
    if (index === this.length) return this.end;
    const frame = this.frames.findLast(f => f.index <= index);
    if (!this.cursor || this.cursor.index > index || this.cursor.index < frame.index)
      this.cursor = frame.copy(this.cursor || new State(this.strings));
    return this.forward(this.cursor, index);
  }
  forward(state, stop) { // what happened until then, on a state of before
    for (let i = state.index; i < stop; i++) reduce(state, this.words, this.place(i));
    return state;
  }
  place(index) { return this.offsets[index - this.first]; } // of an event in `words`
  type(index) { return this.words[this.place(index)]; }
  event(index) {
    if (index < this.first || index >= this.length) return null;
    return { ...decode(this.words, this.place(index), this.strings), index };
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
      const at = this.place(i), type = this.words[at];
      const here = this.words[at + poolAt(type)] === id, copied = type === COPIED && this.words[at + 4] === id && this.words[at + 5] === block;
      if (!here && !copied) continue;
      const [from, n, shift] = blocksOf(this.words, at);
      if (copied || this.words.subarray(from, from + n).some(word => word >> shift === block)) out.push(this.event(i));
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
