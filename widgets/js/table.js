// The same in words: tables that can be read aloud and copied, and now and then one spoken line.
import { SHARED, COPIED, EVICTED } from "./wire.js";
import { el } from "./dom.js";
import { barWords, barSet } from "./bar.js";

const TABLE_MOST = 200; // rows of holders

export function table(root, hub) {
  const { fold } = hub, [t, n] = barWords(hub, "table");
  const cells = (row, head) => el("tr", {}, ...row.map((x, i) => (head || !i ? el("th", { scope: head || "row" }, x)
    : x.toFixed ? el("td", { class: "inms-number" }, n(x)) : el("td", {}, x))));
  const box = el("div", { tabindex: 0, role: "region", "aria-label": t("title") }), when = el("p"), more = el("p");
  const grid = key => {
    const [caption, ...columns] = t(key).split("|"), body = el("tbody");
    box.append(el("table", {}, el("caption", {}, caption), el("thead", {}, cells(columns, "col")), body));
    return rows => body.replaceChildren(...rows.map(row => cells(row)));
  };
  box.append(when);
  const pools = grid("pools"), holders = grid("holders");
  box.append(more);
  const open = el("details", { ontoggle: () => hub.change() }, el("summary", {}, t("title")), box);
  root.append(open);

  const show = state => {
    barSet(when, hub.t("time_at", n(hub.cursor), n(fold.length), n(state.step)));
    pools([...state.pools.values()].map(p => [p.name, t(p.tier), p.size, p.count, p.held, p.cached, p.free, p.held * p.size - p.used]));
    const all = state.seqs.filter(q => q && q.state !== "reclaimed");
    holders(all.slice(0, TABLE_MOST).map(q => {
      const blocks = q.segments.flatMap(s => s.blocks.map(b => state.pool(s.pool).refs[b]));
      const shifted = q.segments.reduce((n, s) => n + s.blocks.length * s.fragment, 0);
      const labels = new Set(q.segments.map(s => state.str(s.label).replaceAll("\n", " + ") || t("public")));
      return [hub.nameOf(q.id), t(q.kind), t(q.state), state.numTokens(q), blocks.length, blocks.filter(refs => refs > 1).length, shifted, [...labels].join(", ")];
    }));
    barSet(more, all.length > TABLE_MOST ? t("more", n(all.length - TABLE_MOST)) : "");
  };
  // In follow mode, at most one line in two seconds says what is new.
  let told = fold.length, toldAt = 0, teller, shown = 0, timer;
  const tell = () => {
    teller = 0;
    if (hub.mode !== "follow") return;
    const count = { move: 0, shift: 0, [SHARED]: 0, [COPIED]: 0, [EVICTED]: 0 }, where = { [SHARED]: 6, [EVICTED]: 3 };
    for (let i = Math.max(told, fold.first); i < fold.length; i++) {
      const type = fold.type(i);
      if (type in count) count[fold.kinds.get(i) || type] += where[type] ? fold.words[fold.place(i) + where[type]] : 1;
    }
    told = fold.length; toldAt = Date.now();
    hub.say(t("line", ...[fold.end.step, fold.end.row()[2], count[SHARED], count[COPIED], count[EVICTED], count.shift].map(n)));
  };
  return {
    draw(state) {
      if (hub.mode !== "follow") told = fold.length;
      else if (told !== fold.length) teller ||= setTimeout(tell, toldAt + 2000 - Date.now());
      if (!open.open) return;
      const wait = shown + 500 - Date.now();
      if (wait <= 0) { shown = Date.now(); show(state); }
      else timer ||= setTimeout(() => { timer = 0; hub.change(); }, wait);
    },
    destroy() { clearTimeout(timer); clearTimeout(teller); },
  };
}
