// Reads what wire.py writes: events as int32 words, strings and labels as numbers in a table.

const TABLE = "seq_id segment $pool_id length"; // what most say of a holder's table
// A record's fields behind its type: $ is a string's number, @ a label's.
const FIELDS = {
  PoolOpened: "$pool_id $tier $tenant block_size num_blocks @label",
  Registered: "seq_id $kind $called $tenant @clearance $namespace parent_id @off",
  Commanded: "seq_id number $verb $tier @label $pool_id offset length count flags $cause source piece encoded",
  Released: "seq_id $by $group offset length replaces",
  Shared: `${TABLE} $cause`,
  Allocated: TABLE,
  Copied: "seq_id segment index $src_pool src $pool_id dst num_slots",
  Evicted: "$pool_id $cause",
  Freed: `${TABLE} $cause forget`,
  Stepped: "step offset",
  Published: "seq_id segment $pool_id first",
  Aborted: `${TABLE} $cause`,
};
export const NAMES = Object.keys(FIELDS);
export const [OPENED, REGISTERED, COMMANDED, RELEASED, SHARED, ALLOCATED, COPIED, EVICTED, FREED,
  STEPPED, PUBLISHED, ABORTED, K_POOL, K_HOLDER, K_SEGMENT] = Array(15).keys();

const EACH = [0, 0, 0, 0, 1, 1, 0, 2, 1, 4, 5, 1]; // words for each that follows the fixed part
// Words of the fixed part, its type included; the last of them counts what follows.
const FIXED = NAMES.map((name, i) => FIELDS[name].split(" ").length + (EACH[i] ? 2 : 1));

export function sizeOf(words, at) {
  const type = words[at], fixed = FIXED[type];
  return EACH[type] ? fixed + EACH[type] * words[at + fixed - 1] : fixed;
}

// Where the blocks of a record begin, how many there are, and by how many bits each is shifted.
export function blocksOf(words, at) {
  const type = words[at], fixed = FIXED[type];
  if (type === COPIED) return [at + 7, 1, 0];
  if (!EACH[type] || type === STEPPED) return [at, 0, 0];
  return [at + fixed, words[at + fixed - 1], type === ALLOCATED ? 1 : 0];
}

export const poolAt = type =>
  type === OPENED || type === EVICTED ? 1 : type === COMMANDED || type === COPIED ? 6 : 3;

// An event as an object with the names of events.py, but `name` is its own and a holder is `called`;
// labels are arrays of principals.
export function decode(words, at, strings) {
  const name = NAMES[words[at]], out = { name };
  FIELDS[name].split(" ").forEach((field, i) => {
    const word = words[at + 1 + i], text = strings[word], mark = field[0];
    out[field.replace(/^[$@]/, "")] = mark === "$" ? text : mark === "@" ? (text ? text.split("\n") : []) : word;
  });
  const [from, count, shift] = blocksOf(words, at);
  if (name === "Stepped") {
    const n = words[at + 3];
    out.items = Array.from({ length: n }, (_, i) => [...words.subarray(at + 4 + 4 * i, at + 8 + 4 * i)]);
  } else if (count && name !== "Copied") {
    out.blocks = Array.from(words.subarray(from, from + count), b => b >> shift);
    if (name === "Evicted") out.remaining = [...words.subarray(from + count, from + 2 * count)];
    if (name === "Published")
      out.keys = out.blocks.map((_, i) => hex(words, from + count + 4 * i));
  }
  return out;
}

// Four words as the 32 hex digits of a key.
export function hex(words, at) {
  let out = "";
  for (let i = 0; i < 16; i++)
    out += ((words[at + (i >> 2)] >>> (8 * (i & 3))) & 255).toString(16).padStart(2, "0");
  return out;
}
