// Each holder's context: coloured segments in order, and the text that they are made of.
import { el } from "./dom.js";
import { shiftOf } from "./state.js";
import { stepPut, stepSaid, stepText } from "./stepper.js";

// A holder's context cut at blocks, and where no further KV is written; `like`: what looks equal.
function agentSpans(state, seq, pin) {
  const out = [];
  seq.segments.forEach((seg, number) => {
    const shift = shiftOf(seg), pool = state.pool(seg.pool);
    for (let at = 0, to; at < seg.count; at = to) {
      const i = Math.floor(at / seg.size), block = seg.blocks[i] ?? -1, written = at < seg.computed, refs = pool.refs[block] || 0;
      to = Math.min(seg.count, block < 0 ? seg.count : (i + 1) * seg.size, written ? seg.computed : seg.count);
      const held = block >= 0, pinned = held && pin?.block === block && pin.pool === pool.name;
      out.push({ from: seg.first + at, to: seg.first + to, tier: seg.tier, size: seg.size, site: held && [pool.name, block], refs, shift, written, pinned, like: [number, held, written, refs > 1, pinned].join() });
    }
  });
  return out;
}

// Why a holder got nothing when it was last planned, at the cursor's moment; `known` is kept: the
// decisions of each holder, and how many were read.
function agentWaits(hub, known, id) {
  const { decisions, firstDecision } = hub.fold;
  if (!known.by || known.next > decisions.length) Object.assign(known, { by: new Map(), next: firstDecision });
  for (const { by } = known; known.next < decisions.length; known.next++) {
    const d = decisions[known.next];
    if (d) (by.get(d.seq) || by.set(d.seq, []).get(d.seq)).push(d);
  }
  const last = known.by.get(id)?.findLast(d => d.stop <= hub.cursor);
  return last?.outcome === "deferred" ? last : null;
}

export function agents(root, hub) {
  const { fold } = hub, t = hub.words("agent"), cards = new Map(), known = {}, list = el("ul");
  const more = el("button", { onclick: () => { all = true; hub.change(); } }), masked = el("p", { hidden: true }, t("masked"));
  let last, auto = null, all = false, width = 0, pin = null;
  root.append(el("h3", {}, t("title")), masked, list, more);
  list.onclick = list.onkeydown = e => { // click, Enter: light it; arrows: to the next one
    const n = e.target.closest("[data-tier]"), way = { ArrowRight: "nextSibling", ArrowLeft: "previousSibling" }[e.key];
    if (!n || e.key && !way && !/^(Enter| )$/.test(e.key)) return;
    e.preventDefault(); e.stopPropagation();
    if (!way) {
      hub.light(n.sites.map(s => s.join(":")));
      if (n.sites[0]) hub.setPin({ pool: n.sites[0][0], block: n.sites[0][1] });
    } else if (n[way]?.sites) { n.tabIndex = -1; n[way].tabIndex = 0; n[way].focus(); }
  };
  function span(tag, i, run, ...kids) { // its glyph and its count come from the style sheet
    const [{ from, tier, refs, shift, written, pinned }] = run, sites = run.map(s => s.site).filter(Boolean), [a, b] = [sites[0], sites.at(-1)];
    const title = t("span", from, run.at(-1).to, t(tier), a ? a.join(":") + (a === b ? "" : `…${b[1]}`) : "–", refs, t(written ? "written" : "unwritten")) + (shift && ` · ${hub.t("detail_shift", shift)}`);
    return Object.assign(el(tag, { title, role: "button", tabindex: i ? -1 : 0, "data-k": tag + i, "data-tier": tier, "data-refs": refs, "data-shift": shift, class: `${shift && "a-shifted"} ${refs > 1 ? "a-shared" : ""} ${written ? "" : "a-todo"} ${pinned ? "a-pin" : ""}` }, ...kids), { sites });
  }
  function bar(spans, total) {
    const runs = [];
    for (const s of spans) if (runs.at(-1)?.[0].like === s.like) runs.at(-1).push(s); else runs.push([s]);
    return runs.map((run, i) => {
      const [s] = run, n = run.at(-1).to - s.from, wide = width * n / total;
      const node = span("div", i, run);
      node.style.flex = n;
      node.ariaLabel = node.title;
      if (wide / run.length > 5) node.style.setProperty("--block", `${100 * s.size / n}%`);
      return node;
    });
  }
  function text(seq, box, spans, total) { // at most so many tokens around what is pinned, else the last
    const most = box.most ||= 2000, at = spans.find(s => s.pinned)?.from ?? total, from = Math.max(0, Math.min(at - most / 2, total - most)), stop = from + most;
    const tokens = seq.segments.flatMap(g => fold.tokensOf(g, Math.max(0, from - g.first), stop - Math.max(g.first, from))), pieces = fold.textOf(tokens);
    if (tokens.some(x => x < 0)) masked.hidden = false;
    const wider = el("button", { "data-k": "more", onclick: () => { box.most *= 2; hub.change(); } }, t("more", total - tokens.length));
    let p = 0;
    const nodes = spans.filter(s => s.to > from && s.from < stop).map((s, i) => {
      const start = p;
      while (p < pieces.length && pieces[p][1] + from < s.to) p++;
      return span("span", i, [s], ...stepText(pieces.slice(start, p)));
    });
    return [from > 0 && wider, ...nodes, stop < total && wider];
  }
  const boxOf = id => {
    if (!cards.has(id)) cards.set(id, el("li", { style: `--own: hsl(${id * 137 % 360} 70% 78%)` }));
    return cards.get(id);
  };
  function card(state, seq) {
    const { id } = seq, spans = agentSpans(state, seq, hub.pin), total = state.numTokens(seq), box = boxOf(id);
    const told = state.str(seq.cause), why = !state.live(seq) && (fold.errors[id] || hub.word(`detail_w_${told}`, told)) || "", lines = why.trim().split("\n");
    const wait = /^(prefilling|decoding)$/.test(seq.state) && agentWaits(hub, known, id);
    const sig = [seq.state, wait?.number, box.open, box.most, width, why.length, ...spans.map(s => s.like + s.to + s.site + s.refs)].join();
    if (box.sig === sig) return box;
    box.sig = sig;
    box.className = state.live(seq) ? "" : "a-ended";
    const old = box.querySelector(".a-text"), top = old?.scrollTop, low = !old || old.scrollHeight - top - old.clientHeight < 9;
    const group = (name, kids) => el("div", { class: `a-${name}`, role: "group", "aria-label": t(name), lang: "" }, ...kids.filter(Boolean));
    const now = total && box.open && group("text", text(seq, box, spans, total));
    const pick = () => { box.open = !box.open; if (box.open) hub.agent = last = id; hub.change(); };
    stepPut(box, el("div", { class: "a-head" }, el("button", { "data-k": "head", "aria-expanded": `${!!box.open}`, onclick: pick }, `${box.open ? "▾" : "▸"} ${hub.nameOf(id)}`), ...[`k_${seq.kind}`, `s_${seq.state}`].map(k => el("span", {}, t(k))), t("size", total, seq.segments.reduce((n, g) => n + g.blocks.length, 0)), lines[1] ? "" : el("span", {}, why), wait && el("span", { class: "a-wait" }, `${hub.t("step_o_deferred")}: ${stepSaid(hub, wait.reason)}`)),
      lines[1] && el("details", { class: "a-error" }, el("summary", {}, `✕ ${lines.at(-1)}`), el("pre", { tabindex: 0 }, why)),
      total && group("bar", bar(spans, total)), now);
    const other = hub.pin !== pin;
    if (now) queueMicrotask(() => { // it stays where it was, follows its end, or shows what is pinned now
      now.scrollTop = low ? 1e9 : top;
      const y = now.querySelector(".a-pin")?.offsetTop - now.scrollTop;
      if (other && (y < 0 || y > now.clientHeight - 30)) now.scrollTop += y - 40;
    });
    return box;
  }
  return {
    pace: 100, // milliseconds between two pictures while the log only grows
    draw(state) {
      width = list.clientWidth;
      const every = state.seqs.filter(Boolean), seqs = [...every.filter(q => state.live(q)), ...every.filter(q => !state.live(q))], pick = hub.agent ?? seqs.find(q => q.kind === "agent")?.id;
      const moved = pick != null && pick !== last, shown = seqs.filter((q, i) => all || i < 24 || q.id === pick);
      if (moved) { // what nobody chose is closed when another takes its place
        if (auto !== null) boxOf(auto).open = false;
        auto = hub.agent === null ? pick : null;
        last = pick; boxOf(pick).open = true;
      }
      const boxes = shown.map(q => card(state, q));
      if (cards.size > 200 && !all) for (const [id, box] of cards) if (!box.open && !boxes.includes(box)) cards.delete(id);
      if (boxes.length !== list.children.length || boxes.some((b, i) => b !== list.children[i])) stepPut(list, boxes);
      pin = hub.pin;
      more.hidden = shown.length === seqs.length;
      more.textContent = t("all", seqs.length - shown.length);
      if (moved && hub.agent !== null) boxOf(pick).scrollIntoView({ block: "nearest", behavior: hub.still ? "auto" : "smooth" });
    },
    destroy() {},
  };
}
