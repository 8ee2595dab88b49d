// A dashboard on a page: in a notebook through anywidget, or offline from one file.
import { Fold } from "./fold.js";
import { Hub } from "./hub.js";
import { el } from "./dom.js";
import { bar } from "./bar.js";
import { blockMap } from "./map.js";
import { detail } from "./detail.js";
import { timeline } from "./timeline.js";
import { stepper } from "./stepper.js";
import { agents } from "./agents.js";
import { table } from "./table.js";

const PARTS = { bar, timeline, map: blockMap, detail, decision: stepper, agents, table };
const ALL = Object.keys(PARTS);

const cut = view => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength),
  whole = (m, [words, tokens, keyframe]) => ({ ...m, words, tokens, keyframe: m.hasKeyframe && keyframe });

// Builds the parts into `root`; gives the hub.
export function build(root, fold, options) {
  const hub = new Hub(fold, options.strings, options), parts = options.parts || ALL,
    live = el("div", { class: "inms-say", role: "status", "aria-live": "polite" }), message = el("div", { class: "inms-message", role: "alert", hidden: true });
  root.classList.add("inms-dash");
  root.classList.toggle("inms-projector", !!options.projector);
  Object.assign(root, { lang: options.lang === "zh" ? "zh-Hans" : "en", role: "group", ariaLabel: hub.t("dashboard"), tabIndex: 0 });
  root.dataset.lmSuppressShortcuts = "true"; // the notebook's own keys stay away from ours
  const told = message.cloneNode(), tell = to => text => { to.textContent = text; to.hidden = !text; };
  root.replaceChildren(message, told, live);
  hub.root = root;
  hub.on("say", tell(live)); hub.on("problem", tell(message)); hub.on("told", tell(told));
  const beside = ["map", "detail", "decision"].filter(p => parts.includes(p) && PARTS[p]),
    columns = el("div", { class: beside.length > 2 ? "inms-cols inms-cols-2" : "inms-cols" });
  for (const name of ALL.filter(p => parts.includes(p))) {
    const box = el("section", { class: `inms-part inms-${name}` });
    if (name === beside[0]) root.append(columns);
    (beside.includes(name) ? columns : root).append(box);
    hub.parts.push(PARTS[name](box, hub));
  }
  root.hub = hub; // for those who drive a page by script
  const keys = event => key(hub, event);
  root.addEventListener("keydown", keys);
  hub.on("stop", () => { // pages keep elements of views that are gone: nothing may hang on to them
    root.removeEventListener("keydown", keys);
    root.replaceChildren();
    delete root.hub;
  });
  hub.change();
  return hub;
}

// Keys that work wherever the focus is in the dashboard; a part may use them first.
function key(hub, event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "range") return;
  const shift = event.shiftKey, unit = shift ? "token" : hub.unit, name = event.key.replace(/^.$/, c => c.toLowerCase());
  const kind = { c: "copy", e: "evict", r: "refuse", s: "shift" }[name], act = kind ? () => hub.jump(kind, shift ? -1 : 1) : {
    ArrowRight: () => hub.step(1, unit), ArrowLeft: () => hub.step(-1, unit),
    " ": () => hub.setMode(hub.moves ? "paused" : "play"),
    Home: () => hub.seek(hub.fold.first), End: () => hub.seek(hub.fold.length),
    f: () => hub.setMode("follow"), "]": () => hub.pick(1), "[": () => hub.pick(-1),
    Escape: () => { hub.setPin(null); hub.light([]); },
  }[name];
  if (!act) return;
  event.preventDefault(); event.stopPropagation();
  act();
}

// --- in a notebook ---------------------------------------------------------------------------

const heeding = (model, listeners) => { // listens from now on; gives what ends it: ("off")
  const heed = act => { for (const name in listeners) model[act](name, listeners[name]); };
  heed("on");
  return heed;
};
// One store for all views of a widget: it hears every message from the widget's creation on.
const STORES = new Map(); // by the widget's key: each view gets a model object of its own
class Store {
  fold = new Fold(); hubs = new Set(); asked = new Map(); lab = {}; next = 1; problem = "";
  constructor(model) {
    this.model = model;
    this.heed = heeding(model, {
      "msg:custom": (message, buffers) => this.receive(message, buffers || []),
      comm_live_update: () => this.ready(), // the kernel was started again, for one
    });
    const first = model.get("first");
    if (first && first.byteLength) { // what there was when the widget was made
      try { this.log(unpack(first)); } catch (error) { this.fail(error); }
    }
    this.ready();
  }
  ready() {
    const { fold } = this;
    this.send({ kind: "ready", have: fold.length, strings: fold.strings.length, tokens: fold.numTokens, pieces: fold.pieces.size, decisions: fold.decisions.length, first: fold.first });
  }
  send(message) {
    try { this.model.send(message); } catch { // there is no kernel to hear it
      this.lab = { state: "gone" };
      for (const { reject } of this.asked.values()) reject(new Error("kernel_gone"));
      this.asked.clear();
      this.fail("kernel_gone");
    }
  }
  receive(m, buffers) {
    try {
      if (m.kind === "log") this.log(whole(m, buffers.map(view => new Int32Array(cut(view)))));
      else if (m.kind === "answer") {
        const done = this.asked.get(m.id);
        this.asked.delete(m.id);
        if (done) (m.error ? done.reject(new Error(m.error)) : done.resolve(m.value));
      } else if (m.kind === "problem") this.fail(m.text);
    } catch (error) { this.fail(error); }
  }
  log(m) {
    if (m.lab) this.lab = m.lab;
    const followed = this.fold.push(m);
    if (m.number !== undefined) this.send({ kind: "ack", number: m.number, have: this.fold.length });
    if (!followed) this.ready(); // something was lost on the way: ask for it
    for (const hub of this.hubs) { hub.received(); this.tell(hub); }
  }
  tell(hub) {
    hub.lab = this.lab;
    hub.emit("lab"); hub.emit("problem", hub.t(...[this.lab.problem || this.problem].flat()));
    const look = this.model.get("look"); // where the kernel points: once what happened up to there has come
    if (look.number !== hub.looked && !(look.index > this.fold.length)) hub.point(look);
  }
  fail(error) {
    this.problem = String(error.message || error);
    for (const hub of this.hubs) this.tell(hub);
  }
  ask(what, payload) {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.asked.set(id, { resolve, reject });
      this.send({ kind: "ask", id, what, ...payload });
    });
  }
  close() { this.heed("off"); for (const hub of this.hubs) this.drop(hub); }
  drop(hub) { this.hubs.delete(hub); hub.stop(); }
}
export const storeOf = model => {
  const key = model.get("key");
  if (!STORES.has(key)) STORES.set(key, new Store(model));
  return STORES.get(key);
};

export function unpack(view) { // a message and its buffers in one: length of the JSON, the JSON, buffers
  const bytes = cut(view);
  let at = 4 + new DataView(bytes).getUint32(0, true);
  const m = JSON.parse(new TextDecoder().decode(bytes.slice(4, at)));
  return whole(m, m.sizes.map(size => new Int32Array(bytes.slice(at, at += size))));
}

export default {
  initialize({ model }) {
    const store = storeOf(model);
    return () => {
      store.close();
      STORES.delete(model.get("key"));
      for (const name of ["code", "_css", "first"]) model.set(name, ""); // pages keep models, too
    };
  },
  render({ model, el: root }) {
    const store = storeOf(model), make = () => {
      const hub = build(root, store.fold, {
        parts: model.get("parts"), lang: model.get("lang"), strings: model.get("strings"), projector: model.get("projector"),
        ask: (what, payload) => store.ask(what, payload),
        command: (name, value) => store.send({ kind: "command", name, value }),
      });
      store.hubs.add(hub); store.tell(hub);
      return hub;
    };
    let hub = make();
    const again = () => { store.drop(hub); hub = make(); },
      heed = heeding(model, { "change:look": () => store.tell(hub), "change:parts": again, "change:lang": again, "change:projector": again });
    return () => { heed("off"); store.drop(hub); };
  },
};
