// Folds logs with the browser's own fold and prints the books: see test_fold.py.
// stdin: [{messages: [{from, words, strings, ...}], at: [index, ...]}, ...]; words as base64.
import { readFileSync } from "node:fs";
import { Fold } from "../widgets/js/fold.js";
import { WRITTEN, PROMISED, CACHED } from "../widgets/js/pool.js";

const ints = text => { const b = Buffer.from(text, "base64"); return new Int32Array(b.buffer.slice(b.byteOffset, b.byteOffset + b.length)); };

function plain(fold, state) {
  const pools = {}, str = id => fold.strings[id];
  for (const pool of state.pools.values()) {
    const out = (pools[pool.name] = { refs: {}, shifted: {}, labels: {}, cached: [], written: [], promised: [], free: pool.free });
    for (let b = 0; b < pool.high; b++) {
      if (pool.refs[b]) out.refs[b] = pool.refs[b];
      if (pool.shifted[b]) out.shifted[b] = pool.shifted[b];
      if (pool.refs[b] || pool.flags[b] & CACHED) out.labels[b] = str(pool.label[b]);
      if (pool.flags[b] & CACHED) out.cached.push(b);
      if (pool.flags[b] & WRITTEN) out.written.push(b);
      if (pool.flags[b] & PROMISED) out.promised.push(b);
    }
  }
  const seqs = state.seqs.map(q => [q.state, q.number, q.generate, q.logits, q.wanted, q.segments.map(s =>
    [str(s.pool), s.tier, str(s.label), s.size, s.first, s.encoded, s.fragment, s.source, s.open, s.indexed, fold.tokensOf(s, 0, s.count), s.blocks.slice(), s.length, s.computed])]);
  const records = Object.fromEntries([...state.records].map(([k, v]) => [str(k), v]));
  return { pools, seqs, records, step: state.step, row: state.row() };
}

const of = (fold, kind) => [...fold.kinds].filter(x => x[1] === kind).map(x => x[0]);
const kinds = fold => ({ shifts: of(fold, "shift"), moves: of(fold, "moved") });
const out = JSON.parse(readFileSync(0, "utf8")).map(({ messages, at, budget, spacing }) => {
  const fold = new Fold({ budget, spacing });
  const pushed = messages.map(m => fold.push({ ...m, words: ints(m.words), tokens: m.tokens && ints(m.tokens), keyframe: m.keyframe && ints(m.keyframe) }));
  return { pushed, length: fold.length, frames: fold.frames.map(f => f.index), ...kinds(fold), series: fold.series, states: at.map(i => plain(fold, fold.at(i))) };
});
console.log(JSON.stringify(out));
