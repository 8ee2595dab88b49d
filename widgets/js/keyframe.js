// The books that a keyframe holds: what wire.py's `keyframe` writes.
import { OPENED, K_POOL, K_HOLDER, K_SEGMENT, sizeOf } from "./wire.js";
import { CACHED } from "./pool.js";
import { reduce, registered } from "./reduce.js";

// Puts a keyframe's books into an empty state. Tokens go into `extra`, which is known by negative
// offsets, for the token table belongs to the log.
export function restore(state, words, extra) {
  for (let at = 0; at < words.length;) {
    const type = words[at];
    if (type === OPENED) { reduce(state, words, at); at += sizeOf(words, at); }
    else at = (RESTORE[type] || restoreRest)(state, words, at, extra);
  }
}
const RESTORE = { [K_POOL]: restorePool, [K_HOLDER]: restoreHolder, [K_SEGMENT]: restoreSegment };
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
  const w = words.subarray(at, at + 14), [now, number, generate, logits, wanted] = w.subarray(9);
  state.seqs[w[1]] = { ...registered(state, w), state: state.str(now), number, generate, logits: !!logits, wanted };
  return at + 14;
}
function restoreSegment(state, words, at, extra) {
  const [, id, pool, tier, label, size, first, encoded, flags, source, length, computed, n] = words.subarray(at);
  const seq = state.seqs[id], from = at + 13 + n, count = words[from], seg = {
    pool, tier: state.str(tier), label, size, first, encoded, source, count, length: 0, computed,
    open: !!(flags & 1), indexed: !!(flags & 2), fragment: !!(flags & 4),
    ranges: count ? [[-1 - extra.length, count]] : [], blocks: [...words.subarray(at + 13, from)],
  };
  for (let i = 0; i < count; i++) extra.push(words[from + 1 + i]);
  seq.segments.push(seg);
  for (const block of seg.blocks) state.pool(pool).shifted[block] += seg.fragment;
  state.length(seq, seg, length);
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
