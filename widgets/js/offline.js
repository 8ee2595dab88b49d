// The dashboard on a page without a kernel: everything comes from the page itself.
import { Fold, unbase } from "./fold.js";
import { el } from "./dom.js";
import { build, unpack } from "./main.js";

// `text`: base64 of the gzip of a packed message, as export.py writes it.
export async function offline(root, text, options) {
  try {
    const stream = new Blob([unbase(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const m = unpack(new Uint8Array(await new Response(stream).arrayBuffer()));
    const fold = new Fold();
    fold.push(m);
    const hub = build(root, fold, options);
    const fullest = fold.series.reduce((a, b) => (b[2] > a[2] ? b : a), [fold.length, 0, 0]);
    hub.seek(fullest[0]); // at the end all has been given back
    return hub;
  } catch (error) {
    root.append(el("p", { class: "inms-message", role: "alert" }, `${options.strings.unreadable[options.lang === "zh" ? 1 : 0]} ${error.message}`));
    return null;
  }
}
