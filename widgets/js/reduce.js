// One event changes the books: the same reducer as ledger.py's, over the words of wire.js.
import {
  OPENED, REGISTERED, COMMANDED, RELEASED, SHARED, ALLOCATED, COPIED, EVICTED, FREED, STEPPED,
  PUBLISHED, ABORTED,
} from "./wire.js";
import { Pool, WRITTEN, PROMISED } from "./pool.js";
import { clamp, need, sum } from "./state.js";

const READ_ONLY = ["global", "group"], ENDS = { close: "finished", fail: "failed", expire: "expired" };

// The record of `words` that begins at `at`.
export function reduce(state, words, at) {
  REDUCE[words[at]](state, words.subarray(at));
  state.index++;
}
const each = (state, pool, blocks, change) => { // changes blocks: this event touched them last
  for (const block of blocks) { change(block); pool.last[block] = state.index + 1; }
};
const place = (state, w) => { // holder, segment, pool
  const seq = state.own(w[1]);
  return [seq, seq.segments[w[2]], state.pool(w[3])];
};
// A holder as it registers.
export const registered = (state, [, id, kind, name, tenant, clearance, , parent, off]) => ({
  id, kind: state.str(kind), name: state.str(name), tenant: state.str(tenant), clearance, parent, off,
  state: "registered", number: 0, generate: 0, logits: false, wanted: 0, segments: [], epoch: state.epoch,
});
const bare = s => ({ ...s, ranges: s.ranges.map(r => [...r]), blocks: [], length: 0, computed: 0 });

// By type; `w` are the words from the record on, its own and later ones.
const REDUCE = {
  [OPENED](state, [, id, tier, tenant, size, count, ceiling]) {
    state.pools.set(id, new Pool(state.str(id), state.str(tier), state.str(tenant), size, count, ceiling));
  },
  [REGISTERED](state, w) {
    const seq = registered(state, w), from = state.seqs[seq.parent];
    state.seqs[seq.id] = seq;
    if (!from) return; // a fork knows its parent's tokens; its blocks are mounted by Shared
    seq.segments = from.segments.map(bare);
    seq.wanted = from.wanted;
    state.move(seq);
  },
  [RELEASED](state, [, id, , group, , , old]) { // a new version takes the place of the one before
    const now = state.records.get(group) || [];
    state.records.set(group, now.includes(old) ? now.map(r => (r === old ? id : r)) : [...now, id]);
  },
  [SHARED](state, w) {
    const [seq, seg, pool] = place(state, w), n = w[6], blocks = w.subarray(7, 7 + n);
    each(state, pool, blocks, block => { pool.share(block); pool.shifted[block] += seg.fragment; });
    state.mount(seq, seg, blocks, w[4], true);
    state.move(seq);
    if (state.str(w[5]) !== "hit") return;
    state.hits += n; state.asked += n;
    if (seg.fragment) { state.shifted += n; state.kind = "shift"; }
  },
  [ALLOCATED](state, w) {
    const [seq, seg, pool] = place(state, w), n = w[5], blocks = w.subarray(6, 6 + n).map(word => word >> 1);
    each(state, pool, blocks, block => pool.take(block, seg.label));
    blocks.forEach((block, i) => { if (w[6 + i] & 1) pool.flags[block] |= PROMISED; });
    state.mount(seq, seg, blocks, w[4], false);
    state.asked += n;
  },
  [COPIED](state, w) {
    const [, , , index, from, src, to, dst, slots] = w, [seq, seg] = place(state, w), source = state.pool(from), pool = state.pool(to);
    each(state, pool, [dst], () => pool.take(dst, seg.label));
    each(state, source, [src], () => {});
    if (index === seg.blocks.length) state.mount(seq, seg, [dst], index * seg.size + slots, true);
    else {
      seg.blocks[index] = dst;
      source.release(src, false);
      state.fill(seg, index * seg.size, Math.min(seg.length, (index + 1) * seg.size));
      if (source.uneven.has(src)) state.refit(source, src);
    }
    state.move(seq);
    if (source.state(src) === "free") state.kind = "moved"; // nobody else had it
    else state.asked++;
  },
  [EVICTED](state, w) {
    const pool = state.pool(w[1]);
    each(state, pool, w.subarray(4, 4 + w[3]), block => pool.evict(block));
    if (state.str(w[2]) === "moved") state.kind = "moved";
  },
  [FREED]: (state, w) => letGo(state, w, w[6], w.subarray(8, 8 + w[7])),
  [ABORTED]: (state, w) => letGo(state, w, 0, w.subarray(7, 7 + w[6])),
  [PUBLISHED](state, w) {
    const { flags } = state.pool(w[3]);
    each(state, state.pool(w[3]), w.subarray(6, 6 + w[5]), block => { flags[block] = (flags[block] | WRITTEN) & ~PROMISED; });
  },
  [STEPPED](state, w) {
    let offset = w[2];
    for (let k = 0, p = 4; k < w[3]; k++, p += 4) {
      const seq = state.own(w[p]), sampled = w[p + 2], done = w[p + 3];
      wrote(state, seq, w[p + 1]);
      if (sampled) {
        extend(seq.segments.at(-1), offset, sampled);
        seq.generate = done ? 0 : seq.generate - sampled;
        offset += sampled;
      } else if (done) seq.logits = false;
      state.move(seq);
    }
    state.step = w[1];
  },
  [COMMANDED](state, w) {
    const seq = state.own(w[1]), verb = state.str(w[3]), count = w[9], writes = verb === "write", stops = verb === "stop", cuts = verb === "rollback";
    seq.number = w[2];
    if (ENDS[verb]) {
      seq.generate = 0; seq.logits = false;
      if (seq.kind === "agent") state.alone -= sum(seq.segments, s => need(s, s.length));
      seq.state = ENDS[verb]; seq.cause = w[11];
      reclaim(seq);
      return;
    }
    if (writes || verb === "append") append(state, w, seq);
    if (verb === "detach") detach(state, w, seq, count);
    if (cuts) rollback(state, seq, count);
    if (stops) for (const { pool, blocks, computed, size } of seq.segments) // what is begun, nobody need finish
      if (computed % size) state.pool(pool).flags[blocks[computed / size | 0]] &= ~PROMISED;
    if (writes || cuts || stops) {
      seq.generate = writes ? count : 0;
      seq.logits = false;
      state.trim(seq);
    } else if (verb === "logits") seq.logits = true;
    state.move(seq);
  },
};

function reclaim(seq) { if (!seq.segments.some(s => s.blocks.length)) seq.state = "reclaimed"; }
function letGo(state, w, forget, blocks) {
  const [seq, seg, pool] = place(state, w), idle = !state.busy(seq), n = blocks.length;
  each(state, pool, blocks, block => { pool.release(block, forget); pool.shifted[block] -= seg.fragment; });
  const gone = seg.blocks.splice(seg.blocks.length - n, n);
  state.length(seq, seg, w[4]);
  seg.computed = Math.min(seg.computed, seg.length);
  for (const block of gone) if (pool.uneven.has(block)) state.refit(pool, block);
  const last = need(seg, seg.length) - 1, block = seg.blocks[last];
  if (last >= 0 && seg.length - last * seg.size < pool.fill[block]) { // a cut goes through it
    if (pool.refs[block] > 1) pool.uneven.add(block);
    state.refit(pool, block);
  }
  if (!state.live(seq)) { reclaim(seq); return; }
  if (idle) seq.wanted = Math.min(seq.wanted, state.numComputed(seq));
  state.trim(seq);
  state.move(seq);
}
function wrote(state, seq, count) { // the next `count` slots have their KV
  for (const seg of seq.segments) {
    const from = seg.computed, step = Math.min(count, seg.count - from, seg.blocks.length * seg.size - from);
    if (step <= 0) continue;
    seg.computed += step;
    if (seg.computed > seg.length) state.length(seq, seg, seg.computed);
    state.fill(seg, from, seg.computed);
    count -= step;
  }
}
function append(state, w, seq) {
  const n = w[8], flags = w[10];
  let last = seq.segments.at(-1);
  const same = last?.pool === w[6] && last.tier === state.str(w[4]) && last.label === w[5] && last.indexed === !!(flags & 4);
  if (!same || !last.open || flags & 3) { // sealed or fresh text is a segment of its own
    if (last) last.open = false;
    last = segment(state, w, state.numTokens(seq));
    seq.segments.push(last);
  }
  if (n) extend(last, w[7], n);
  last.open = !(flags & 1);
  if (n) seq.wanted = state.numTokens(seq);
}
// An empty one, as a command places it.
function segment(state, [, , , , tier, label, pool, , , , flags, , source, piece, encoded], first) {
  return {
    pool, tier: state.str(tier), label, size: state.pool(pool).size, first, source,
    encoded: piece < 0 ? first : encoded, fragment: piece >= 0, open: true, indexed: !!(flags & 4),
    ranges: [], count: 0, blocks: [], length: 0, computed: 0,
  };
}
function detach(state, w, seq, number) { // the rest of a fragment is the holder's own
  const old = seq.segments[number], kept = old.computed, own = { ...segment(state, w, old.first + kept), open: false, source: old.source };
  let skip = kept;
  for (const [offset, n] of old.ranges) {
    const from = Math.min(skip, n); // a keyframe's tokens have negative offsets
    if (n > from) extend(own, offset < 0 ? offset - from : offset + from, n - from);
    skip -= from;
  }
  shorten(old, kept);
  seq.segments.splice(number, 1, ...(kept ? [old, own] : [own]));
}
function shorten(seg, keep) { // its first `keep` tokens stay
  let left = keep;
  for (const range of seg.ranges) { range[1] = Math.min(range[1], left); left -= range[1]; }
  seg.ranges = seg.ranges.filter(range => range[1]);
  seg.count = keep;
}
function extend(seg, offset, n) { // tokens are ranges of the log's token table
  const last = seg.ranges.at(-1);
  if (last && last[0] + last[1] === offset) last[1] += n;
  else seg.ranges.push([offset, n]);
  seg.count += n;
}
function rollback(state, seq, count) {
  for (const seg of seq.segments) {
    const keep = clamp(count - seg.first, 0, seg.count);
    if (keep === seg.count) continue;
    shorten(seg, keep);
    seg.open = !READ_ONLY.includes(seg.tier) && !seg.fragment;
    const index = Math.floor(keep / seg.size);
    if (keep % seg.size && index < seg.blocks.length)
      state.pool(seg.pool).flags[seg.blocks[index]] &= ~PROMISED;
  }
  seq.generate = 0;
  state.trim(seq);
  seq.wanted = Math.min(seq.wanted, count);
}
