// One event changes the books: the same reducer as ledger.py's, over the words of wire.js.
import {
  OPENED, REGISTERED, COMMANDED, RELEASED, SHARED, ALLOCATED, COPIED, EVICTED, FREED, STEPPED,
  PUBLISHED, ABORTED,
} from "./wire.js";
import { Pool, WRITTEN, PROMISED } from "./pool.js";
import { need, sum } from "./state.js";

const READ_ONLY = ["global", "group"];
const ENDS = { close: "finished", fail: "failed", expire: "expired" };
const REDUCE = [];

// The record of `words` that begins at `at`.
export function reduce(state, words, at) {
  REDUCE[words[at]](state, words, at);
  state.index++;
}
const touch = (state, pool, block) => { pool.last[block] = state.index + 1; };
const place = (state, words, at) => { // holder, segment, pool
  const seq = state.own(words[at + 1]);
  return [seq, seq.segments[words[at + 2]], state.pool(words[at + 3])];
};
const reclaim = seq => { if (!seq.segments.some(s => s.blocks.length)) seq.state = "reclaimed"; };

REDUCE[OPENED] = (state, words, at) => {
  const [id, tier, tenant, size, count, ceiling] = words.subarray(at + 1, at + 7);
  state.pools.set(id, new Pool(state.str(id), state.str(tier), state.str(tenant), size, count, ceiling));
};
REDUCE[REGISTERED] = (state, words, at) => {
  const [id, kind, name, tenant, clearance, , parent, off] = words.subarray(at + 1, at + 9);
  const seq = {
    id, kind: state.str(kind), name: state.str(name), tenant: state.str(tenant), clearance, parent, off,
    state: "registered", number: 0, generate: 0, logits: false, wanted: 0, segments: [],
    epoch: state.epoch,
  };
  const from = state.seqs[parent];
  if (from) { // a fork knows its parent's tokens; its blocks are mounted by Shared
    const bare = s => ({ ...s, ranges: s.ranges.map(r => [...r]), blocks: [], length: 0, computed: 0 });
    seq.segments = from.segments.map(bare);
    seq.wanted = from.wanted;
    state.move(seq);
  }
  state.seqs[id] = seq;
};
REDUCE[RELEASED] = (state, words, at) => {
  const [, id, , group, , , old] = words.subarray(at, at + 7), now = state.records.get(group) || [];
  const replaced = now.includes(old); // a new version takes the place of the one before
  state.records.set(group, replaced ? now.map(r => (r === old ? id : r)) : [...now, id]);
};
REDUCE[SHARED] = (state, words, at) => {
  const [seq, seg, pool] = place(state, words, at), n = words[at + 6];
  const blocks = words.subarray(at + 7, at + 7 + n);
  for (const block of blocks) { pool.share(block); touch(state, pool, block); }
  state.mount(seq, seg, blocks, words[at + 4], true);
  state.move(seq);
  if (state.str(words[at + 5]) === "hit") { state.hits += n; state.asked += n; }
};
REDUCE[ALLOCATED] = (state, words, at) => {
  const [seq, seg, pool] = place(state, words, at), n = words[at + 5], blocks = new Array(n);
  for (let i = 0; i < n; i++) {
    const word = words[at + 6 + i], block = blocks[i] = word >> 1;
    pool.take(block, seg.label);
    if (word & 1) pool.flags[block] |= PROMISED;
    touch(state, pool, block);
  }
  state.mount(seq, seg, blocks, words[at + 4], false);
  state.asked += n;
};
REDUCE[COPIED] = (state, words, at) => {
  const [, , , index, from, src, to, dst, slots] = words.subarray(at, at + 9);
  const [seq, seg] = place(state, words, at), source = state.pool(from), pool = state.pool(to);
  pool.take(dst, seg.label);
  touch(state, source, src); touch(state, pool, dst);
  if (index === seg.blocks.length) state.mount(seq, seg, [dst], index * seg.size + slots, true);
  else {
    seg.blocks[index] = dst;
    source.release(src, false);
    state.fill(seg, index * seg.size, Math.min(seg.length, (index + 1) * seg.size));
    if (source.uneven.has(src)) state.refit(source, src);
  }
  state.move(seq);
  state.asked++;
};
REDUCE[EVICTED] = (state, words, at) => {
  const pool = state.pool(words[at + 1]);
  for (const block of words.subarray(at + 4, at + 4 + words[at + 3])) {
    pool.evict(block);
    touch(state, pool, block);
  }
};
REDUCE[FREED] = (state, words, at) => letGo(state, words, at, words[at + 6], at + 8, words[at + 7]);
REDUCE[ABORTED] = (state, words, at) => letGo(state, words, at, 0, at + 7, words[at + 6]);
function letGo(state, words, at, forget, from, n) {
  const [seq, seg, pool] = place(state, words, at), idle = !state.busy(seq);
  for (const block of words.subarray(from, from + n)) {
    pool.release(block, forget);
    touch(state, pool, block);
  }
  const gone = seg.blocks.splice(seg.blocks.length - n, n);
  state.length(seq, seg, words[at + 4]);
  seg.computed = Math.min(seg.computed, seg.length);
  if (pool.uneven.size) for (const block of gone) if (pool.uneven.has(block)) state.refit(pool, block);
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
REDUCE[PUBLISHED] = (state, words, at) => {
  const pool = state.pool(words[at + 3]);
  for (const block of words.subarray(at + 6, at + 6 + words[at + 5])) {
    pool.flags[block] = (pool.flags[block] | WRITTEN) & ~PROMISED;
    touch(state, pool, block);
  }
};
REDUCE[STEPPED] = (state, words, at) => {
  let offset = words[at + 2];
  for (let k = 0, p = at + 4; k < words[at + 3]; k++, p += 4) {
    const seq = state.own(words[p]), sampled = words[p + 2], done = words[p + 3];
    wrote(state, seq, words[p + 1]);
    if (sampled) {
      extend(seq.segments[seq.segments.length - 1], offset, sampled);
      seq.generate = done ? 0 : seq.generate - sampled;
      offset += sampled;
    } else if (done) seq.logits = false;
    state.move(seq);
  }
  state.step = words[at + 1];
};
function wrote(state, seq, count) { // the next `count` slots have their KV
  for (const seg of seq.segments) {
    const room = Math.min(seg.count, seg.blocks.length * seg.size) - seg.computed;
    const step = Math.min(count, room), from = seg.computed;
    if (step <= 0) continue;
    seg.computed += step;
    if (seg.computed > seg.length) state.length(seq, seg, seg.computed);
    state.fill(seg, from, seg.computed);
    count -= step;
  }
}
REDUCE[COMMANDED] = (state, words, at) => {
  const [, id, number, word, , , , , , count, , cause] = words.subarray(at, at + 12);
  const seq = state.own(id), verb = state.str(word);
  seq.number = number;
  if (ENDS[verb]) {
    seq.generate = 0; seq.logits = false;
    if (seq.kind === "agent") state.alone -= sum(seq.segments, s => need(s, s.length));
    seq.state = ENDS[verb]; seq.cause = cause;
    reclaim(seq);
    return;
  }
  if (verb === "append" || verb === "write") append(state, words, at, seq);
  else if (verb === "detach") detach(state, words, at, seq, count);
  else if (verb === "rollback") rollback(state, seq, count);
  if (verb === "write" || verb === "rollback" || verb === "stop") {
    seq.generate = verb === "write" ? count : 0;
    seq.logits = false;
  } else if (verb === "logits") seq.logits = true;
  state.move(seq);
};
function append(state, words, at, seq) {
  const [tierId, label, pool, offset, n, , flags] = words.subarray(at + 4, at + 11);
  const tier = state.str(tierId), indexed = !!(flags & 4), seal = flags & 1;
  let last = seq.segments[seq.segments.length - 1];
  const same = last?.pool === pool && last.tier === tier && last.label === label && last.indexed === indexed;
  if (!same || !last.open || flags & 3) { // sealed or fresh text is a segment of its own
    const first = state.numTokens(seq);
    if (last) last.open = false;
    last = segment(state, words, at, first);
    seq.segments.push(last);
  }
  if (n) extend(last, offset, n);
  last.open = !seal;
  if (n) seq.wanted = state.numTokens(seq);
}
function segment(state, words, at, first) { // an empty one, as the command at `at` places it
  const [tier, label, pool, , , , flags, , source, piece, encoded] = words.subarray(at + 4, at + 15);
  return {
    pool, tier: state.str(tier), label, size: state.pool(pool).size, first, source,
    encoded: piece < 0 ? first : encoded, fragment: piece >= 0, open: true, indexed: !!(flags & 4),
    ranges: [], count: 0, blocks: [], length: 0, computed: 0,
  };
}
function detach(state, words, at, seq, number) { // the rest of a fragment is the holder's own
  const old = seq.segments[number], kept = old.computed;
  const own = { ...segment(state, words, at, old.first + kept), open: false, source: old.source };
  let skip = kept;
  for (const [offset, n] of old.ranges) {
    const from = Math.min(skip, n); // a keyframe's tokens have negative offsets
    if (n > from) extend(own, offset < 0 ? offset - from : offset + from, n - from);
    skip -= from;
  }
  cut(old, kept);
  seq.segments.splice(number, 1, ...(kept ? [old, own] : [own]));
}
function cut(seg, keep) { // its first `keep` tokens stay
  let left = keep;
  for (const range of seg.ranges) { range[1] = Math.min(range[1], left); left -= range[1]; }
  seg.ranges = seg.ranges.filter(range => range[1]);
  seg.count = keep;
}
function extend(seg, offset, n) { // tokens are ranges of the log's token table
  const last = seg.ranges[seg.ranges.length - 1];
  if (last && last[0] + last[1] === offset) last[1] += n;
  else seg.ranges.push([offset, n]);
  seg.count += n;
}
function rollback(state, seq, count) {
  for (const seg of seq.segments) {
    const keep = Math.max(0, Math.min(seg.count, count - seg.first));
    if (keep === seg.count) continue;
    cut(seg, keep);
    seg.open = !READ_ONLY.includes(seg.tier) && !seg.fragment;
    const index = Math.floor(keep / seg.size);
    if (keep % seg.size && index < seg.blocks.length)
      state.pool(seg.pool).flags[seg.blocks[index]] &= ~PROMISED;
  }
  seq.generate = 0;
  state.trim(seq);
  seq.wanted = Math.min(seq.wanted, count);
}
