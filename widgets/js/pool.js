// One pool of blocks in typed arrays: the same verbs as pool.py's.

export const WRITTEN = 1, PROMISED = 2, CACHED = 4; // a block's flags; held is refs > 0
// By block: holders; flags; label (a string's number); slots in use, the most over its holders; how
// often it was handed out (its generation); 1 + index of the last event that touched it; how many of
// its holders have it as a fragment.
const ARRAYS = { refs: Uint16Array, shifted: Uint16Array, flags: Uint8Array, label: Int32Array, fill: Uint16Array, born: Uint16Array, last: Int32Array };

export class Pool {
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
  bytes() { return 13 * this.high + 100; }
}
