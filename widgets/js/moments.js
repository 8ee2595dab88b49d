// When things happened in a log: what the timeline draws, read once as the log grows.
import { REGISTERED, COMMANDED, RELEASED, STEPPED } from "./wire.js";
import { KIND, REFUSALS } from "./hub.js";

export const TIME_ENDS = { close: "■", fail: "‼", expire: "□" };
export const timeFind = (list, value, lo = 0, of = x => x) => { // the first that is not below
  for (let hi = list.length; lo < hi;) { const mid = (lo + hi) >> 1; if (of(list[mid]) < value) lo = mid + 1; else hi = mid; }
  return lo;
};
// When things happened (moments: 1 + index), as lists that grow; every event is read once.
export class TimeIndex {
  constructor(fold) {
    this.first = this.next = this.step = fold.first; this.told = 0; this.lanes = new Map();
    this.replaced = []; // [moment, record, the record that holds no longer]
    this.marks = { copy: [], shift: [], evict: [], refuse: [], fail: [], free: [], release: [] };
    for (const q of fold.frames[0]?.seqs || []) if (q && fold.end.live(q)) this.begin(q.id, q.kind);
  }
  begin(id, kind) {
    if (kind === "agent") this.lanes.set(id, { id, start: this.next, at: [], from: [], size: [], read: [], share: [], shift: [], copy: [] });
  }
  read(fold) {
    const { words: w, offsets, strings, first, length, decisions } = fold, { lanes, marks, replaced } = this;
    for (; this.next < length; this.next++) {
      const at = offsets[this.next - first], type = w[at], id = w[at + 1], now = this.next + 1, lane = lanes.get(id), kind = fold.kinds.get(this.next) || KIND[type];
      marks[kind]?.push(now); lane?.[kind]?.push(now);
      if (type === REGISTERED) this.begin(id, strings[w[at + 2]]);
      else if (type === RELEASED) {
        marks.release.push(now);
        if (w[at + 6] >= 0) replaced.push([now, id, w[at + 6]]);
      }
      else if (type === COMMANDED) {
        const verb = strings[w[at + 3]];
        if (verb === "fail") marks.fail.push(now);
        if (lane && TIME_ENDS[verb]) { lane.end = now; lane.how = verb; } else if (w[at + 8]) lane?.read.push(now);
      } else if (type === STEPPED) {
        for (let p = at + 4, stop = p + 4 * w[at + 3]; p < stop; p += 4) {
          const one = lanes.get(w[p]);
          if (one) { one.at.push(now); one.from.push(this.step); one.size.push(w[p + 1]); }
        }
        this.step = now;
      }
    }
    for (; this.told < decisions.length; this.told++) {
      const d = decisions[this.told];
      if (REFUSALS.includes(d?.outcome)) marks.refuse.push(d.stop);
    }
  }
}
