// What is pinned: a block's text, keys and holders, and everything that ever happened to it.
import { PUBLISHED, hex } from "./wire.js";
import { WRITTEN } from "./pool.js";
import { runs } from "./hub.js";
import { el } from "./dom.js";
import { shiftOf } from "./state.js";
import { poolNamed, holdersOf, lightHolder } from "./map_people.js";

// An event in words.
export function detailWords(hub, e) {
  const say = word => hub.word(`detail_w_${word}`, word), copied = e.name === "Copied", kind = hub.fold.kinds.get(e.index), why = kind || (e.verb && hub.said ? hub.said(e.cause) : e.cause), whose = e.piece >= 0 && hub.t("detail_fragment", hub.nameOf(e.source), e.encoded);
  return hub.t(e.replaces >= 0 ? "detail_Replaced" : copied && kind ? "detail_Moved" : `detail_${e.name}`, e.seq_id >= 0 ? hub.nameOf(e.seq_id) : "", e.pool_id ?? e.group, copied ? `${e.src}` : runs(e.blocks || []), `${e.dst}`,
    [e.verb, why, whose].filter(Boolean).map(say).join(": "), e.step ?? e.num_slots ?? e.num_blocks, e.items?.length, e.replaces >= 0 && hub.nameOf(e.replaces));
}
// Keys that these [pool, block] had before `index`: a function that gives [key, event that published it, place in it].
function detailKeys(fold, blocks, index) {
  const key = (pool, block) => pool * 2 ** 32 + block, want = new Set(blocks.map(x => key(...x))), out = new Map(), { words } = fold;
  for (let i = index - 1; i >= fold.first && want.size; i--) {
    const at = fold.place(i), n = words[at + 5];
    if (words[at] === PUBLISHED) for (let j = 0; j < n; j++) { const k = key(words[at + 3], words[at + 6 + j]); if (want.delete(k)) out.set(k, [hex(words, at + 6 + n + 4 * j), i, j]); }
  }
  return (pool, block) => out.get(key(pool, block));
}

export function detail(root, hub) {
  const { fold } = hub, t = hub.words("detail"), body = el("div", { class: "detail-body" });
  let spaces = false, told = "", pinned = "", story = [], known = "", past = "", before = null;
  const find = el("input", { type: "text", size: 14, placeholder: "private:12", "aria-label": t("find"), onkeydown(e) {
    if (e.key !== "Enter") return; // a page may keep Enter from making a change
    const cut = find.value.lastIndexOf(":"), block = find.value.slice(cut + 1).trim();
    hub.setPin({ pool: find.value.slice(0, Math.max(0, cut)).trim(), block: /^\d+$/.test(block) ? +block : block });
  } }), off = el("button", { onclick: () => hub.setPin(null) }, t("unpin"));
  root.append(el("div", { class: "map-bar" }, el("h3", {}, t("title")), el("label", {}, t("find"), " ", find), off), body);
  const button = (k, text, onclick, more) => el("button", { "data-k": k, onclick, ...more }, text), dim = text => el("small", { class: "inms-dim" }, text, " "),
    part = (key, ...children) => el("div", { class: `detail-${key}` }, el("h4", {}, t(key)), ...children), one = (state, pool, block) => `${state.pool(pool).name}:${block}`;

  // The place in its writer's table of a block that nobody holds now, when it was published by event `at`.
  function writer([, at, place]) {
    const frame = fold.frames.findLast(f => f.index <= at), tag = `${at} ${place}`;
    if (past === tag || !frame) return past === tag ? before : null;
    const event = fold.event(at), seq = fold.forward(frame.copy(), at).seqs[event.seq_id];
    past = tag;
    return (before = [seq, seq.segments[event.segment], event.first + place]);
  }
  function text([, seg, i]) {
    const from = i * seg.size, tokens = fold.tokensOf(seg, from, seg.size), shown = el("pre", { tabindex: 0, "data-k": "text" });
    for (const [piece, first, n] of fold.textOf(tokens))
      shown.append(el("span", { class: from + first >= seg.computed ? "detail-next" : null, title: t("slot", first, tokens.slice(first, first + n).join(" ")) }, spaces ? piece.replace(/ /g, "·").replace(/\t/g, "⇥").replace(/\n/g, "⏎\n") : piece));
    return part("text", shown, button("spaces", t("spaces"), () => { spaces = !spaces; hub.change(); }, { "aria-pressed": String(spaces) }), " ",
      tokens.some(x => x < 0) && dim(t("redacted")), from + tokens.length > seg.computed && dim(t("coming")), !tokens.length && dim(t("no_text")));
  }
  function chain(state, id, block, [seq, seg, i]) {
    const all = (seg.fragment ? [] : seq.segments.slice(0, seq.segments.indexOf(seg))).flatMap(s => s.blocks.map(b => [s.pool, b]));
    for (const b of seg.blocks.slice(0, i)) all.push([seg.pool, b]);
    const path = [...all.slice(-7), [id, block]], keys = detailKeys(fold, path.filter(([p, b]) => state.pool(p).flags[b] & WRITTEN), state.index), own = keys(id, block)?.[0];
    return part("chain", el("ol", { class: "detail-keys" }, all.length > 7 && el("li", {}, dim(t("earlier", all.length - 7))),
      ...path.map(([p, b], n) => el("li", {}, button(`key${n}`, keys(p, b)?.[0].slice(0, 8) || "—", () => hub.setPin({ pool: state.pool(p).name, block: b }), { title: one(state, p, b) })))),
    own ? el("div", {}, el("code", {}, own), " ", button("copy", t("copy"), () => navigator.clipboard?.writeText(own).then(() => hub.say(t("copied")), () => {}))) : dim(t("no_key")));
  }
  const holders = list => part("holders", !list.length && dim(t("nobody")),
    ...list.slice(0, 40).map(([seq, seg, i]) => {
      const place = t("place", seq.segments.indexOf(seg), i, seg.first + i * seg.size), how = seg.fragment ? t("shift", shiftOf(seg)) : t("in_place");
      return button(`h${seq.id}`, [hub.nameOf(seq.id), t("w_" + seq.kind), place, how].join(" · "), () => lightHolder(hub, seq.id));
    }),
    list.length > 40 && dim(hub.t("map_more", list.length - 40)));
  function history(state, { pool: name, block }) {
    const end = poolNamed(fold.end, name)[1], tag = `${name}:${block} ${end.last[block]} ${fold.first}`;
    if (tag !== known) { known = tag; story = fold.history(name, block); }
    const births = story.filter(e => e.name === "Allocated" || (e.dst === block && e.pool_id === name)), now = births.findLastIndex(e => e.index < state.index), last = story.findLast(e => e.index < state.index),
      go = (k, e) => button(k, t(k), () => hub.seek(e.index + 1), { disabled: !e });
    return part("history", go("older", births[now - 1]), go("newer", births[now + 1]), el("ol", { class: "detail-list" }, ...story.flatMap(e => [
      births.includes(e) && el("li", { class: "detail-gen" }, t("nth", end.born[block] - births.length + 1 + births.indexOf(e))),
      el("li", {}, button(`e${e.index}`, `#${e.index} ${detailWords(hub, e)}`, () => hub.seek(e.index + 1), { class: e.index < state.index ? null : "detail-later", "aria-current": e === last ? "step" : null })),
    ])), story.length > 199 && dim(t("cut", story.length)));
  }
  function show(state) {
    const { pin } = hub, [id, pool] = pin ? poolNamed(state, pin.pool) : [], b = pin?.block, e = fold.event(state.index - 1);
    if (!pin) return [el("p", { class: "inms-dim" }, t("hint")), e && el("p", {}, `#${e.index} ${detailWords(hub, e)}`)];
    const bad = !pool ? t(pin.pool ? "no_pool" : "form", pin.pool, [...state.pools.values()].map(p => p.name).join(", ")) : b >= 0 && b < pool.count ? "" : t("range", pin.pool, b, pool.count - 1);
    if (bad) return [el("p", { role: "alert" }, bad)];
    const list = holdersOf(state, id, b), now = pool.state(b), key = now === "cached" && detailKeys(fold, [[id, b]], state.index)(id, b), source = list.find(([, s]) => !s.fragment) || list[0] || (key && writer(key)),
      label = now === "free" ? "" : (fold.strings[pool.label[b]] || "").split("\n").join(", "), n = a => (b < pool.high ? a[b] : 0),
      facts = { block: one(state, id, b), tier: hub.t(`map_${pool.tier}`), state: hub.t(`map_s_${now}`), refcount: n(pool.refs), generation: n(pool.born), label: label || "—", slots: hub.t("map_slots", n(pool.fill), pool.size), position: source ? source[1].encoded + source[2] * pool.size : "—" };
    return [el("dl", {}, ...Object.entries(facts).flatMap(([k, v]) => [el("dt", {}, t(k)), el("dd", {}, String(v))])), source && text(source), holders(list), source && chain(state, id, b, source), history(state, pin)];
  }
  function draw(state) {
    const { pin } = hub, pool = pin && poolNamed(state, pin.pool)[1], tag = JSON.stringify([pin, state.index, fold.length, spaces, pool?.fill[pin.block]]);
    if (tag === told) return;
    told = tag; off.disabled = !pin;
    const focus = root.getRootNode().activeElement, key = body.contains(focus) && focus.dataset.k, at = body.querySelector("ol.detail-list")?.scrollTop, same = pinned === (pinned = JSON.stringify(pin));
    body.replaceChildren(...show(state).filter(Boolean));
    const list = body.querySelector(".detail-list"), now = list?.querySelector("[aria-current]");
    if (list && same) list.scrollTop = at || 0;
    if (now && (now.offsetTop < list.scrollTop || now.offsetTop + now.offsetHeight > list.scrollTop + list.clientHeight)) list.scrollTop = now.offsetTop - list.clientHeight / 2;
    if (key) body.querySelector(`[data-k="${key}"]`)?.focus({ preventScroll: true });
  }
  return { draw, destroy: () => root.replaceChildren() };
}
