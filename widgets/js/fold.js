// The books at any moment of a log: the same fold as ledger.py's, in typed arrays, with keyframes.
import {
  OPENED, REGISTERED, COMMANDED, RELEASED, SHARED, ALLOCATED, COPIED, EVICTED, FREED, STEPPED,
  PUBLISHED, ABORTED, K_POOL, K_HOLDER, K_SEGMENT, K_BOOKS, NAMES, sizeOf, blocksOf, poolAt, decode,
} from "./wire.js";

export const WRITTEN = 1, PROMISED = 2, CACHED = 4; // a block's flags; held is refs > 0
const READ_ONLY = ["global", "group"];
const ENDS = { close: "finished", fail: "failed", expire: "expired" };
const LIVE = ["registered", "prefilling", "ready", "decoding"];
// What a picture sums up, one row a step: index and step; blocks held, cached and free by tier sum;
// blocks that live agents would hold each alone; unused slots; holes; stranded; hits; looked up.
export const SERIES = [
  "index", "step", "held", "cached", "free", "alone", "unused", "holes", "stranded", "hits", "asked",
];

// By block: holders; flags; label (a string's number); slots in use, the most over its holders; how
// often it was handed out (its generation); 1 + index of the last event that touched it.
const ARRAYS = { refs: Uint16Array, flags: Uint8Array, label: Int32Array, fill: Uint16Array, born: Uint16Array, last: Int32Array };

class Pool {
  constructor(name, tier, tenant, size, count, ceiling) {
    Object.assign(this, { name, tier, tenant, size, count, ceiling });
    this.high = this.held = this.cached = this.used = this.gaps = 0; // high: blocks ever in use
    this.uneven = new Set(); // blocks whose holders use different numbers of slots
    this.room(Math.min(count, 256));
  }
  room(n) { // arrays grow with what is in use, not with what is reserved
    for (const [name, Kind] of Object.entries(ARRAYS)) {
      const to = new Kind(n);
      if (this[name]) to.set(this[name]);
      this[name] = to;
    }
  }
  see(block) {
    if (block < this.high) return;
    if (block >= this.refs.length)
      this.room(Math.min(this.count, Math.max(2 * this.refs.length, block + 1)));
    this.gaps += block - this.high + 1; // free ones below the highest in use
    this.high = block + 1;
  }
  take(block, label) { // free -> held
    this.see(block);
    this.refs[block] = 1; this.label[block] = label; this.born[block]++;
    this.flags[block] = this.fill[block] = 0;
    this.held++; this.gaps--;
  }
  share(block) {
    if (this.flags[block] & CACHED) {
      this.flags[block] &= ~CACHED; this.cached--; this.held++; this.used += this.fill[block];
    }
    this.refs[block]++;
  }
  release(block, forget) {
    if (--this.refs[block]) return;
    this.held--; this.used -= this.fill[block];
    if (this.uneven.size) this.uneven.delete(block);
    this.flags[block] &= ~PROMISED;
    if (this.flags[block] & WRITTEN && !forget) { this.flags[block] |= CACHED; this.cached++; }
    else this.drop(block);
  }
  drop(block) { // -> free
    this.flags[block] = this.fill[block] = 0; this.label[block] = 0; this.gaps++;
  }
  evict(block) {
    this.flags[block] &= ~WRITTEN;
    if (this.flags[block] & CACHED) { this.cached--; this.drop(block); }
  }
  filled(block, slots) { // a held block has this many slots in use
    this.used += slots - this.fill[block]; this.fill[block] = slots;
  }
  get free() { return this.count - this.held - this.cached; }
  state(block) {
    if (block >= this.high) return "free";
    if (!this.refs[block]) return this.flags[block] & CACHED ? "cached" : "free";
    return this.flags[block] & PROMISED ? "pending" : "held";
  }
  copy(old) { // `old`: a pool whose arrays may be used again; what touched a block last is not kept
    const to = Object.assign(Object.create(Pool.prototype), this);
    for (const name in ARRAYS) {
      const from = this[name].subarray(0, this.high);
      if (name === "last") to.last = old ? old.last.fill(0) : new Int32Array(0);
      else if (old && old[name].length >= this.high) (to[name] = old[name]).fill(0, this.high).set(from);
      else to[name] = from.slice();
    }
    if (to.last.length < to.refs.length && old !== null) to.last = new Int32Array(to.refs.length);
    to.uneven = new Set(this.uneven);
    return to;
  }
  bytes() { return 11 * this.high + 100; }
}

const need = (seg, length) => Math.ceil(length / seg.size);
const sum = (list, f) => { let n = 0; for (const x of list) n += f(x); return n; };

export class State {
  constructor(strings) {
    this.strings = strings; // the log's, which only grows
    this.pools = new Map(); this.seqs = []; this.records = new Map();
    this.step = 0; this.index = 0; this.epoch = {}; this.touched = null;
    this.alone = this.hits = this.asked = 0;
  }
  copy(old = null) { // null: a keyframe, to be kept; `old`: a state that is thrown away for this one
    const to = Object.assign(Object.create(State.prototype), this);
    to.pools = new Map([...this.pools].map(([k, p]) => [k, p.copy(old && old.pools.get(k))]));
    to.seqs = this.seqs.slice(); to.records = new Map(this.records); to.touched = null;
    this.epoch = {}; to.epoch = {}; // from here on both clone a holder before they change it
    return to;
  }
  bytes() { return sum(this.pools.values(), p => p.bytes()) + 16 * this.seqs.length; }
  own(id) { // a holder that may be changed
    let seq = this.seqs[id];
    if (seq.epoch !== this.epoch) {
      seq = { ...seq, epoch: this.epoch, segments: seq.segments.map(s => ({ ...s, ranges: s.ranges.map(r => [...r]), blocks: s.blocks.slice() })) };
      this.seqs[id] = seq;
    }
    return seq;
  }
  pool(id) { return this.pools.get(id); }
  str(id) { return this.strings[id]; }
  touch(pool, block, kind) {
    pool.last[block] = this.index + 1;
    if (this.touched) this.touched.push(pool, block, kind);
  }
  numTokens(seq) { return sum(seq.segments, s => s.count); }
  numComputed(seq) { return sum(seq.segments, s => s.computed); }
  live(seq) { return LIVE.includes(seq.state); }
  busy(seq) {
    return this.live(seq) && (seq.generate > 0 || seq.logits || this.numComputed(seq) < seq.wanted);
  }
  move(seq) {
    if (!this.live(seq)) return;
    const tokens = this.numTokens(seq), computed = this.numComputed(seq);
    seq.state = !tokens ? "registered"
      : seq.generate ? (tokens - computed <= 1 ? "decoding" : "prefilling")
      : computed < seq.wanted ? "prefilling" : "ready";
  }
  length(seq, seg, length) { // what the agent would hold alone changes with it
    if (seq.kind === "agent" && this.live(seq)) this.alone += need(seg, length) - need(seg, seg.length);
    seg.length = length;
  }
  fill(seg, from, to) { // slots [from, to) of a segment are in use now
    const pool = this.pool(seg.pool);
    for (let i = Math.floor(from / seg.size); i < need(seg, to); i++) {
      const slots = Math.min(seg.size, to - i * seg.size);
      if (slots > pool.fill[seg.blocks[i]]) pool.filled(seg.blocks[i], slots);
    }
  }
  refit(pool, block) { // its holders use different numbers of slots, and one has changed
    const most = this.mostOf(pool, block);
    if (most !== pool.fill[block]) pool.filled(block, most);
  }
  mount(seq, seg, blocks, length, written) {
    const from = seg.length;
    seg.blocks.push(...blocks);
    this.length(seq, seg, length);
    if (written) seg.computed = length;
    this.fill(seg, from, length);
  }
  trim(seq) {
    while (seq.segments.length && !seq.generate) {
      const last = seq.segments[seq.segments.length - 1];
      if (last.count || last.blocks.length) break;
      seq.segments.pop();
    }
  }
  reclaim(seq) { if (!seq.segments.some(s => s.blocks.length)) seq.state = "reclaimed"; }
  append(seq, tier, label, pool, indexed, fresh, seal) {
    const last = seq.segments[seq.segments.length - 1];
    if (last && !fresh && !seal && last.open && last.pool === pool && last.tier === tier && last.label === label && last.indexed === indexed) return last;
    const first = this.numTokens(seq);
    if (last) last.open = false;
    const seg = { pool, tier, label, size: this.pool(pool).size, first, open: true, indexed, ranges: [], count: 0, blocks: [], length: 0, computed: 0 };
    seq.segments.push(seg);
    return seg;
  }

  // One event: the record of `words` that begins at `at`.
  apply(words, at) {
    switch (words[at]) {
      case OPENED: {
        const id = words[at + 1];
        this.pools.set(id, new Pool(this.str(id), this.str(words[at + 2]), this.str(words[at + 3]), words[at + 4], words[at + 5], words[at + 6]));
        break;
      }
      case REGISTERED: {
        const id = words[at + 1], parent = this.seqs[words[at + 7]];
        const seq = { id, kind: this.str(words[at + 2]), name: this.str(words[at + 3]), tenant: this.str(words[at + 4]), clearance: words[at + 5], parent: words[at + 7], off: words[at + 8], state: "registered", number: 0, generate: 0, logits: false, wanted: 0, segments: [], epoch: this.epoch };
        if (parent) {
          seq.segments = parent.segments.map(s => ({ ...s, ranges: s.ranges.map(r => [...r]), blocks: [], length: 0, computed: 0 }));
          seq.wanted = parent.wanted;
          this.move(seq);
        }
        this.seqs[id] = seq;
        break;
      }
      case COMMANDED: this.command(words, at); break;
      case RELEASED: {
        const group = words[at + 3];
        this.records.set(group, [...(this.records.get(group) || []), words[at + 1]]);
        break;
      }
      case SHARED: {
        const seq = this.own(words[at + 1]), seg = seq.segments[words[at + 2]], pool = this.pool(words[at + 3]);
        const n = words[at + 6], blocks = words.subarray(at + 7, at + 7 + n);
        for (const block of blocks) { pool.share(block); this.touch(pool, block, SHARED); }
        this.mount(seq, seg, blocks, words[at + 4], true);
        this.move(seq);
        if (this.str(words[at + 5]) === "hit") { this.hits += n; this.asked += n; }
        break;
      }
      case ALLOCATED: {
        const seq = this.own(words[at + 1]), seg = seq.segments[words[at + 2]], pool = this.pool(words[at + 3]);
        const n = words[at + 5], blocks = new Array(n);
        for (let i = 0; i < n; i++) {
          const word = words[at + 6 + i], block = word >> 1;
          blocks[i] = block;
          pool.take(block, seg.label);
          if (word & 1) pool.flags[block] |= PROMISED;
          this.touch(pool, block, ALLOCATED);
        }
        this.mount(seq, seg, blocks, words[at + 4], false);
        this.asked += n;
        break;
      }
      case COPIED: {
        const seq = this.own(words[at + 1]), seg = seq.segments[words[at + 2]], index = words[at + 3];
        const source = this.pool(words[at + 4]), src = words[at + 5], pool = this.pool(words[at + 6]), dst = words[at + 7];
        pool.take(dst, seg.label);
        this.touch(source, src, COPIED); this.touch(pool, dst, COPIED);
        if (index === seg.blocks.length) this.mount(seq, seg, [dst], index * seg.size + words[at + 8], true);
        else {
          seg.blocks[index] = dst;
          source.release(src, false);
          this.fill(seg, index * seg.size, Math.min(seg.length, (index + 1) * seg.size));
          if (source.uneven.has(src)) this.refit(source, src);
        }
        this.move(seq);
        this.asked++;
        break;
      }
      case EVICTED: {
        const pool = this.pool(words[at + 1]), n = words[at + 3];
        for (let i = 0; i < n; i++) { pool.evict(words[at + 4 + i]); this.touch(pool, words[at + 4 + i], EVICTED); }
        break;
      }
      case FREED: this.letGo(words, at, words[at + 6], at + 8, words[at + 7], FREED); break;
      case ABORTED: this.letGo(words, at, 0, at + 7, words[at + 6], ABORTED); break;
      case STEPPED: this.stepped(words, at); break;
      case PUBLISHED: {
        const pool = this.pool(words[at + 3]);
        for (let i = 0; i < words[at + 5]; i++) {
          const block = words[at + 6 + i];
          pool.flags[block] = (pool.flags[block] | WRITTEN) & ~PROMISED;
          this.touch(pool, block, PUBLISHED);
        }
        break;
      }
    }
    this.index++;
  }
  command(words, at) {
    const seq = this.own(words[at + 1]), verb = this.str(words[at + 3]);
    seq.number = words[at + 2];
    if (ENDS[verb]) {
      seq.generate = 0; seq.logits = false;
      if (seq.kind === "agent") this.alone -= sum(seq.segments, s => need(s, s.length));
      seq.state = ENDS[verb]; seq.cause = words[at + 11];
      this.reclaim(seq);
      return;
    }
    const count = words[at + 9];
    if (verb === "append" || verb === "write") {
      const flags = words[at + 10], n = words[at + 8];
      const seg = this.append(seq, this.str(words[at + 4]), words[at + 5], words[at + 6], !!(flags & 4), flags & 2, flags & 1);
      if (n) { this.extend(seg, words[at + 7], n); }
      seg.open = !(flags & 1);
      if (n) seq.wanted = this.numTokens(seq);
    } else if (verb === "rollback") this.rollback(seq, count);
    if (verb === "write" || verb === "rollback" || verb === "stop") {
      seq.generate = verb === "write" ? count : 0;
      seq.logits = false;
    } else if (verb === "logits") seq.logits = true;
    this.move(seq);
  }
  extend(seg, offset, n) {
    const last = seg.ranges[seg.ranges.length - 1];
    if (last && last[0] + last[1] === offset) last[1] += n; else seg.ranges.push([offset, n]);
    seg.count += n;
  }
  rollback(seq, count) {
    for (const seg of seq.segments) {
      const keep = Math.max(0, Math.min(seg.count, count - seg.first));
      if (keep === seg.count) continue;
      let left = keep;
      seg.ranges = seg.ranges.map(([o, n]) => { const m = Math.min(n, left); left -= m; return [o, m]; }).filter(r => r[1]);
      seg.count = keep;
      seg.open = !READ_ONLY.includes(seg.tier);
      const index = Math.floor(keep / seg.size);
      if (keep % seg.size && index < seg.blocks.length) this.pool(seg.pool).flags[seg.blocks[index]] &= ~PROMISED;
    }
    seq.generate = 0;
    this.trim(seq);
    seq.wanted = Math.min(seq.wanted, count);
  }
  letGo(words, at, forget, from, n, kind) {
    const seq = this.own(words[at + 1]), seg = seq.segments[words[at + 2]], pool = this.pool(words[at + 3]);
    const idle = !this.busy(seq);
    for (let i = 0; i < n; i++) { pool.release(words[from + i], forget); this.touch(pool, words[from + i], kind); }
    const gone = seg.blocks.splice(seg.blocks.length - n, n);
    this.length(seq, seg, words[at + 4]);
    seg.computed = Math.min(seg.computed, seg.length);
    for (const block of gone) if (pool.uneven.has(block)) this.refit(pool, block);
    const last = need(seg, seg.length) - 1, block = seg.blocks[last];
    if (last >= 0 && seg.length - last * seg.size < pool.fill[block]) { // a cut goes through it
      if (pool.refs[block] > 1) pool.uneven.add(block);
      this.refit(pool, block);
    }
    if (!this.live(seq)) { this.reclaim(seq); return; }
    if (idle) seq.wanted = Math.min(seq.wanted, this.numComputed(seq));
    this.trim(seq);
    this.move(seq);
  }
  mostOf(pool, block) {
    let most = 0;
    for (const seq of this.seqs) for (const seg of seq.segments) {
      if (this.pool(seg.pool) !== pool) continue;
      const i = seg.blocks.indexOf(block);
      if (i >= 0) most = Math.max(most, Math.min(seg.size, seg.length - i * seg.size));
    }
    return most;
  }
  stepped(words, at) {
    let offset = words[at + 2];
    for (let k = 0, p = at + 4; k < words[at + 3]; k++, p += 4) {
      const seq = this.own(words[p]), sampled = words[p + 2], done = words[p + 3];
      let left = words[p + 1];
      for (const seg of seq.segments) {
        const room = Math.min(seg.count, seg.blocks.length * seg.size) - seg.computed, step = Math.min(left, room);
        if (step <= 0) continue;
        const from = seg.computed;
        seg.computed += step;
        if (seg.computed > seg.length) this.length(seq, seg, seg.computed);
        this.fill(seg, from, seg.computed);
        left -= step;
      }
      if (sampled) {
        this.extend(seq.segments[seq.segments.length - 1], offset, sampled);
        seq.generate = done ? 0 : seq.generate - sampled;
        offset += sampled;
      } else if (done) seq.logits = false;
      this.move(seq);
    }
    this.step = words[at + 1];
  }
  // The books of a keyframe; its tokens go into `extra` and are known by negative offsets.
  restore(words, extra) {
    for (let at = 0; at < words.length;) {
      if (words[at] === OPENED) { this.apply(words, at); this.index--; at += 7; }
      else if (words[at] === K_POOL) {
        const pool = this.pool(words[at + 1]), n = words[at + 2];
        for (let i = 0, p = at + 3; i < n; i++, p += 8) {
          const [block, refs, label, flags] = words.subarray(p, p + 4);
          pool.take(block, label);
          pool.flags[block] = flags;
          if (refs) pool.refs[block] = refs;
          else { pool.refs[block] = 0; pool.held--; pool.cached++; pool.flags[block] |= CACHED; }
        }
        at += 3 + 8 * n;
      } else if (words[at] === K_HOLDER) {
        const w = i => words[at + i];
        this.seqs[w(1)] = { id: w(1), kind: this.str(w(2)), name: this.str(w(3)), tenant: this.str(w(4)), clearance: w(5), parent: w(7), off: w(8), state: this.str(w(9)), number: w(10), generate: w(11), logits: !!w(12), wanted: w(13), segments: [], epoch: this.epoch };
        at += 14;
      } else if (words[at] === K_SEGMENT) {
        const w = i => words[at + i], seq = this.seqs[w(1)], n = w(10), from = at + 11 + n, count = words[from];
        const seg = { pool: w(2), tier: this.str(w(3)), label: w(4), size: w(5), first: w(6), open: !!(w(7) & 1), indexed: !!(w(7) & 2), ranges: [], count, blocks: Array.from(words.subarray(at + 11, from)), length: 0, computed: w(9) };
        if (count) seg.ranges.push([-1 - extra.length, count]);
        for (let i = 0; i < count; i++) extra.push(words[from + 1 + i]);
        seq.segments.push(seg);
        this.length(seq, seg, w(8));
        this.fill(seg, 0, seg.length);
        at = from + 1 + count;
      } else {
        this.step = words[at + 1];
        let p = at + 3;
        for (let i = 0; i < words[at + 2]; i++, p += 2 + words[p + 1])
          this.records.set(words[p], Array.from(words.subarray(p + 2, p + 2 + words[p + 1])));
        at = p;
      }
    }
  }
  // The row of SERIES at this moment.
  row() {
    const pools = [...this.pools.values()], free = sum(pools, p => p.free);
    const full = pools.some(p => p.held === p.count);
    return [this.index, this.step, sum(pools, p => p.held), sum(pools, p => p.cached), free,
      this.alone, sum(pools, p => p.held * p.size - p.used), sum(pools, p => p.gaps),
      full ? free : 0, this.hits, this.asked];
  }
}

// A log in the browser: everything received so far, keyframes, and the books at the cursor.
export class Fold {
  constructor({ budget = 96 << 20, spacing = 4096 } = {}) {
    Object.assign(this, { budget, spacing, strings: [], pieces: new Map(), about: {} });
    this.words = new Int32Array(1 << 14); this.used = 0;
    this.offsets = new Int32Array(1 << 12); this.first = 0; this.length = 0;
    this.table = new Int32Array(1 << 12); this.numTokens = 0; this.extra = [];
    this.decisions = []; this.firstDecision = 0; this.explained = new Map(); this.errors = {};
    this.end = new State(this.strings);
    this.frames = []; this.frameBytes = 0;
    this.series = []; // rows of SERIES, one a step, thinned when there are very many
    this.thin = 1;
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
    Object.assign(this, { first: index, length: index, used: 0, frames: [], series: [], thin: 1, cursor: null });
    this.end = new State(this.strings);
    this.end.restore(words, this.extra);
    this.end.index = index;
    this.save();
  }
  take(words) {
    if (!words.length) return;
    this.grow("words", this.used + words.length);
    this.words.set(words, this.used);
    const end = this.end, all = this.words, stop = this.used + words.length;
    if (this.length === this.first && !this.frames.length) this.save();
    for (let at = this.used; at < stop;) {
      const i = this.length - this.first, type = all[at];
      if (i >= this.offsets.length) this.grow("offsets", i + 1);
      this.offsets[i] = at;
      end.apply(all, at);
      at += sizeOf(all, at);
      this.length++;
      if (type === STEPPED) this.sample();
      if (this.length - this.frames[this.frames.length - 1].index >= this.spacing) this.save();
    }
    this.used = stop;
  }
  sample() {
    if (this.end.step % this.thin) return;
    this.series.push(this.end.row());
    if (this.series.length > 20000) { this.series = this.series.filter((_, i) => i % 2); this.thin *= 2; }
  }
  save() {
    const frame = this.end.copy();
    this.frames.push(frame); this.frameBytes = sum(this.frames, f => f.bytes());
    while (this.frameBytes > this.budget && this.frames.length > 2) { // every second one, and rarer
      this.frames = this.frames.filter((_, i) => i % 2 === 0);
      this.frameBytes = sum(this.frames, f => f.bytes());
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
    for (let i = this.cursor.index; i < index; i++) this.cursor.apply(this.words, this.offsets[i - this.first]);
    return this.cursor;
  }
  type(index) { return this.words[this.offsets[index - this.first]]; }
  event(index) {
    if (index < this.first || index >= this.length) return null;
    return { index, ...decode(this.words, this.offsets[index - this.first], this.strings) };
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
export { NAMES };
