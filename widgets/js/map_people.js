// Who holds blocks: a chip for each holder, arcs to those of one block, and a block in words.
import { el } from "./dom.js";
import { clamp, shiftOf } from "./state.js";

const MAP_KINDS = { agent: "●", prompt: "◆", record: "▤" };

export const poolNamed = (state, name) => [...state.pools].find(([, pool]) => pool.name === name) || [];
// Who holds a block: [holder, segment, place in the segment's table].
export function holdersOf(state, id, block) {
  const out = [];
  for (const seq of state.seqs) for (const seg of seq?.segments || []) {
    const i = seg.pool === id ? seg.blocks.indexOf(block) : -1;
    if (i >= 0) out.push([seq, seg, i]);
  }
  return out;
}
// Lights what a holder holds.
export function lightHolder(hub, id) {
  const state = hub.state(), blocks = [];
  for (const seg of state.seqs[id]?.segments || [])
    for (const b of seg.blocks) blocks.push(`${state.pool(seg.pool).name}:${b}`);
  hub.agent = id; hub.light(blocks);
  if (blocks.length) hub.say(hub.t("map_lit", hub.nameOf(id), blocks.length));
}

export const mapEdges = node => node.getBoundingClientRect();

export function mapPeople(hub, t, box, chips) {
  const body = chips.parentNode, arcs = chips.nextSibling, rest = chips.firstChild, chipOf = new Map();

  function people(state) { // all who live or hold something, but not more than a hundred
    const live = state.seqs.filter(q => q && (state.live(q) || q.segments.some(s => s.blocks.length))),
      shown = live.slice(0, 100), more = live.length - 100;
    for (const [id, node] of chipOf) if (!shown.includes(state.seqs[id])) { node.remove(); chipOf.delete(id); }
    for (const seq of shown) {
      const { id } = seq, name = hub.nameOf(id), on = hub.agent === id && hub.lit.size > 0,
        told = `${seq.state} ${on} ${name}`,
        glyph = seq.parent < 0 ? MAP_KINDS[seq.kind] || "●" : "◐";
      let node = chipOf.get(id);
      if (!node) {
        const onclick = () => lightHolder(hub, hub.agent === id && hub.lit.size ? null : id);
        chipOf.set(id, node = el("button", { class: "map-chip", onclick }));
        rest.before(node);
      }
      if (node.told === told) continue;
      node.told = told; node.ariaPressed = on;
      node.replaceChildren(glyph, el("b", { title: name }, name), el("i", {}, t("s_" + seq.state)));
    }
    rest.textContent = more > 0 ? t("more", more) : live.length ? "" : t(state.seqs.length ? "nobody_now" : "nobody");
  }
  function link(holders, [left, top], height) { // arcs from a place in the view to its holders' chips
    const [all, pane, from] = holders.length ? [body, chips, box].map(mapEdges) : [], held = id => holders.some(([seq]) => seq.id === id);
    let paths = "";
    for (const [id, node] of chipOf) {
      node.classList.toggle("map-holds", held(id));
      if (!held(id) || pane.left < from.right || top < 0 || top > height) continue;
      const r = mapEdges(node), x = left + from.left - all.left, y = top + from.top - all.top,
        tx = r.left - all.left, ty = clamp(r.top + r.height / 2, pane.top, pane.bottom) - all.top,
        bend = Math.max(30, (tx - x) / 2);
      paths += `<path d="M${x} ${y}C${x + bend} ${y} ${tx - bend} ${ty} ${tx} ${ty}"/>`;
    }
    if (arcs.told !== paths) arcs.innerHTML = arcs.told = paths;
  }
  function words(pool, block, holders) { // a block in a line
    const names = holders.map(([seq, seg]) => `${hub.nameOf(seq.id)} ${shiftOf(seg)}`.trim()), some = names.slice(0, 8).join(", "),
      out = [pool.name, t("block", block), t("s_" + pool.state(block))];
    if (names.length) out.push(t("held_by", pool.refs[block], some + (names.length > 8 ? " …" : "")));
    if (pool.fill[block]) out.push(t("slots", pool.fill[block], pool.size));
    return out.join(" · ");
  }
  return { people, link, words, chipOf };
}
