// The books at one moment: pools, holders with their segments, and sums for the charts.
// Changed by reduce.js only, one event after the other.

const LIVE = ["registered", "prefilling", "ready", "decoding"];

export const need = (seg, length) => Math.ceil(length / seg.size); // blocks
// "+87": where a fragment's reader has it, less where it was encoded; "" in its own place.
export const shiftOf = seg => (seg.fragment ? `${seg.first < seg.encoded ? "" : "+"}${seg.first - seg.encoded}` : "");
export const clamp = (x, lo, hi) => Math.max(lo, Math.min(x, hi));
export const sum = (list, f) => { let n = 0; for (const x of list) n += f(x); return n; };

export class State {
  pools = new Map(); seqs = []; records = new Map();
  step = 0; index = 0; epoch = {};
  alone = 0; hits = 0; asked = 0; shifted = 0; kind = ""; // of the last event
  constructor(strings) { this.strings = strings; } // the log's, which only grows
  copy(old = null) { // null: a keyframe, to be kept; `old`: a state that is thrown away for this one
    const to = Object.assign(Object.create(State.prototype), this);
    to.pools = new Map([...this.pools].map(([k, p]) => [k, p.copy(old && old.pools.get(k))]));
    to.seqs = this.seqs.slice(); to.records = new Map(this.records);
    this.epoch = {}; to.epoch = {}; // from here on both clone a holder before they change it
    return to;
  }
  bytes() { return sum(this.pools.values(), p => p.bytes()) + 16 * this.seqs.length; }
  pool(id) { return this.pools.get(id); }
  str(id) { return this.strings[id]; }
  own(id) { // a holder that may be changed
    let seq = this.seqs[id];
    if (seq.epoch !== this.epoch) {
      const copy = s => ({ ...s, ranges: s.ranges.map(r => [...r]), blocks: s.blocks.slice() });
      seq = { ...seq, epoch: this.epoch, segments: seq.segments.map(copy) };
      this.seqs[id] = seq;
    }
    return seq;
  }
  numTokens(seq) { return sum(seq.segments, s => s.count); }
  numComputed(seq) { return sum(seq.segments, s => s.computed); }
  live(seq) { return LIVE.includes(seq.state); }
  busy(seq) { // a step could do something for it
    return this.live(seq) && (seq.generate > 0 || seq.logits || this.numComputed(seq) < seq.wanted);
  }
  move(seq) { // to the state that its counts give
    if (!this.live(seq)) return;
    const tokens = this.numTokens(seq), computed = this.numComputed(seq);
    if (!tokens) seq.state = "registered";
    else if (seq.generate) seq.state = tokens - computed <= 1 ? "decoding" : "prefilling";
    else seq.state = computed < seq.wanted ? "prefilling" : "ready";
  }
  trim(seq) { // last segments that have neither tokens nor blocks, unless text is to come
    while (seq.segments.length && !seq.generate) {
      const last = seq.segments.at(-1);
      if (last.count || last.blocks.length) break;
      seq.segments.pop();
    }
  }
  length(seq, seg, length) { // what the agent would hold alone changes with it
    const counts = seq.kind === "agent" && this.live(seq);
    if (counts) this.alone += need(seg, length) - need(seg, seg.length);
    seg.length = length;
  }
  mount(seq, seg, blocks, length, written) {
    const from = seg.length;
    for (const block of blocks) seg.blocks.push(block);
    this.length(seq, seg, length);
    if (written) seg.computed = length;
    this.fill(seg, from, length);
  }
  fill(seg, from, to) { // slots [from, to) of a segment are in use now
    const pool = this.pool(seg.pool);
    for (let i = Math.floor(from / seg.size); i < need(seg, to); i++) {
      const slots = Math.min(seg.size, to - i * seg.size);
      if (slots > pool.fill[seg.blocks[i]]) pool.filled(seg.blocks[i], slots);
    }
  }
  refit(pool, block) { // its holders use different numbers of slots, and one has changed
    let most = 0;
    for (const seq of this.seqs) for (const seg of seq.segments) {
      if (this.pool(seg.pool) !== pool) continue;
      const i = seg.blocks.indexOf(block);
      if (i >= 0) most = Math.max(most, Math.min(seg.size, seg.length - i * seg.size));
    }
    if (most !== pool.fill[block]) pool.filled(block, most);
  }
  // What charts sum up, one row a step: index, step; blocks held, cached, free; blocks that the live
  // agents would hold each alone; unused slots; holes; stranded; blocks found; blocks looked for; of
  // those found, those at a shift.
  row() {
    const pools = [...this.pools.values()], free = sum(pools, p => p.free), full = pools.some(p => p.held === p.count);
    return [
      this.index, this.step, sum(pools, p => p.held), sum(pools, p => p.cached), free, this.alone,
      sum(pools, p => p.held * p.size - p.used), sum(pools, p => p.gaps), full ? free : 0,
      this.hits, this.asked, this.shifted,
    ];
  }
}
