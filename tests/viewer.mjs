// The browser's side of a view without a browser: a model that reads lines and answers with lines.
// stdin: {content, buffers (base64)} as a kernel sends them, {first: base64} once before, or
// {show: true} for the state. stdout: {send: message} or {state: ...}.
import { createInterface } from "node:readline";
import { readFileSync, writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = mkdtempSync(join(tmpdir(), "inms-"));
writeFileSync(join(folder, "esm.mjs"), readFileSync(process.argv[2]));
const { default: widget, storeOf } = await import(pathToFileURL(join(folder, "esm.mjs")));

const say = line => process.stdout.write(JSON.stringify(line) + "\n");
const view = text => { const b = Buffer.from(text, "base64"); return new DataView(b.buffer, b.byteOffset, b.length); };
let hear = null, first = null;
const model = {
  get: name => ({ first, key: "key" })[name],
  on: (name, f) => { if (name === "msg:custom") hear = f; },
  off: () => { hear = null; },
  send: message => say({ send: message }),
};
for await (const line of createInterface({ input: process.stdin })) {
  const m = JSON.parse(line);
  if ("first" in m) { first = m.first ? view(m.first) : null; widget.initialize({ model }); }
  else if (m.content) hear(m.content, m.buffers.map(view));
  else if (m.show) {
    const { fold, lab, problem } = storeOf(model), end = fold.at(fold.length);
    const refs = Object.fromEntries([...end.pools.values()].map(p => [p.name, [...p.refs.subarray(0, p.high)]]));
    const text = m.text ? fold.textOf(end.seqs[m.text].segments.flatMap(s => fold.tokensOf(s, 0, s.count))).map(p => p[0]).join("") : "";
    say({ state: { length: fold.length, first: fold.first, step: end.step, refs, lab, problem, text, decisions: fold.decisions.length, explained: [...fold.explained.keys()], states: end.seqs.map(s => s && s.state) } });
  }
}
