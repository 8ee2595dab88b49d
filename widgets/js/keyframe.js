// The books that a keyframe holds: what wire.py's `keyframe` writes.
import { OPENED, K_POOL, K_HOLDER, K_SEGMENT, sizeOf } from "./wire.js";
import { CACHED } from "./pool.js";
import { reduce } from "./reduce.js";

// Puts a keyframe's books into an empty state. Tokens go into `extra`, which is known by negative
// offsets, for the token table belongs to the log.
export function restore(state, words, extra) {
  for (let at = 0; at < words.length;) {
    const type = words[at];
    if (type === OPENED) { reduce(state, words, at); at += sizeOf(words, at); }
    else if (type === K_POOL) at = restorePool(state, words, at);
    else if (type === K_HOLDER) at = restoreHolder(state, words, at);
    else if (type === K_SEGMENT) at = restoreSegment(state, words, at, extra);
    else at = restoreRest(state, words, at);
  }
}
function restorePool(state, words, at) {
  const pool = state.pool(words[at + 1]), n = words[at + 2];
  for (let i = 0, p = at + 3; i < n; i++, p += 8) {
    const [block, refs, label, flags] = words.subarray(p, p + 4);
    pool.take(block, label);
    pool.flags[block] = flags;
    pool.refs[block] = refs;
    if (!refs) { pool.held--; pool.cached++; pool.flags[block] |= CACHED; }
  }
  return at + 3 + 8 * n;
}
function restoreHolder(state, words, at) {
  const w = i => words[at + i], str = i => state.str(w(i));
  state.seqs[w(1)] = {
    id: w(1), kind: str(2), name: str(3), tenant: str(4), clearance: w(5), parent: w(7), off: w(8),
    state: str(9), number: w(10), generate: w(11), logits: !!w(12), wanted: w(13), segments: [],
    epoch: state.epoch,
  };
  return at + 14;
}
function restoreSegment(state, words, at, extra) {
  const w = i => words[at + i], seq = state.seqs[w(1)], from = at + 13 + w(12), count = words[from];
  const seg = {
    pool: w(2), tier: state.str(w(3)), label: w(4), size: w(5), first: w(6), encoded: w(7),
    open: !!(w(8) & 1), indexed: !!(w(8) & 2), fragment: !!(w(8) & 4), source: w(9), ranges: count ? [[-1 - extra.length, count]] : [], count,
    blocks: Array.from(words.subarray(at + 13, from)), length: 0, computed: w(11),
  };
  for (let i = 0; i < count; i++) extra.push(words[from + 1 + i]);
  seq.segments.push(seg);
  state.length(seq, seg, w(10));
  state.fill(seg, 0, seg.length);
  return from + 1 + count;
}
function restoreRest(state, words, at) {
  state.step = words[at + 1];
  let p = at + 3;
  for (let i = 0; i < words[at + 2]; i++, p += 2 + words[p + 1])
    state.records.set(words[p], Array.from(words.subarray(p + 2, p + 2 + words[p + 1])));
  return p;
}
