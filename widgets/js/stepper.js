// The decision stepper: seven checks one after the other, what came of it, and what if.
import { STEPPED } from "./wire.js";
import { runs } from "./hub.js";
import { el } from "./dom.js";
import { mib, labOpen } from "./units.js";

const STEP_CHECKS = "content written namespace label position gate room".split(" ").map(key => ({ key }));
const STEP_SHIFT = "shared at a shift"; // an outcome

// New children for a box; what had the focus or was open there stays so.
export function stepPut(box, ...kids) {
  const at = box.getRootNode().activeElement, key = box.contains(at) && at.dataset.k, all = () => [...box.querySelectorAll("details")];
  const open = all().filter(d => d.open).map(d => d.dataset.k);
  box.replaceChildren(...kids.flat().filter(Boolean));
  for (const d of all()) d.open = open.includes(d.dataset.k);
  if (key) box.querySelector(`[data-k="${key}"]`)?.focus({ preventScroll: true });
}
// Pieces of text as nodes: the model's control tokens small.
export const stepText = pieces => pieces.map(([text]) => (/^<\|.*\|>$/.test(text) ? el("small", {}, text) : text));
const stepSize = n => (n < 1048576 ? `${+(n / 1024).toFixed(1)} KiB` : mib(n));
// What the engine says, in the language of the view: the table's rows "say_..." are its sentences.
export function stepSaid(hub, text) {
  if (hub.lang !== "zh" || !text) return text;
  const plain = words => words.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\d\}/g, "(.+?)");
  hub.sayings ||= Object.keys(hub.strings).filter(key => key.startsWith("say_")).sort().map(key => {
    const [english, chinese] = hub.strings[key], order = [...english.matchAll(/\{(\d)\}/g)].map(m => m[1]);
    return [new RegExp(`^${plain(english)}$`), chinese, order];
  });
  return text.split("; ").map(one => {
    for (const [form, chinese, order] of hub.sayings) {
      const found = form.exec(one);
      if (found) return chinese.replace(/\{(\d)\}/g, (_, n) => stepSaid(hub, found[1 + order.indexOf(n)]));
    }
    return one;
  }).join("；");
}
// An event of the log, or of a plan that never was, in one line.
const stepTell = (hub, { name, type: kind = name, src_pool, src, pool_id, dst, blocks = [], index, cause: told }) => {
  const word = (part, key) => hub.word(part + key, key);
  const some = blocks.slice(0, 12).join(" ") + (blocks.length > 12 ? ` … (${blocks.length})` : "");
  const cause = hub.fold.kinds.get(index) || told, what = src_pool ? `${src_pool}:${src} → ${pool_id}:${dst}` : `${pool_id}: ${some}`;
  return `${word("step_e_", kind)} ${what}` + (cause ? ` · ${word("detail_w_", cause)}` : "");
};

export function stepper(root, hub) {
  const { fold } = hub, t = hub.words("step"), word = key => t(`o_${key}`);
  const box = (name, ...kids) => el("div", { class: name }, ...kids), p = (name, ...kids) => el("p", { class: name }, ...kids);
  const button = (key, onclick, label, more) => el("button", { "data-k": key, onclick, ...more }, ...[label].flat());
  const choice = name => el("select", { "aria-label": t(name), name }), asWas = v => v || t("as_was");
  const fill = (select, values, label) => {
    const { value } = select;
    select.replaceChildren(...values.map(v => el("option", { value: v }, label(v))));
    if (value) select.value = value;
  };
  const title = el("h3"), head = box("s-row"), main = box(), list = el("ol", { class: "s-checks" }), after = box(), plans = box(), said = p("s-note");
  const kind = choice("kind"), who = choice("who"), query = ["mode", "block_size", "tier"].map(choice);
  const pause = hub.command && el("input", { type: "checkbox" });
  const brk = button("", () => { brk.ariaPressed = breaking = !breaking; mark = hub.cursor; seen = fold.decisions.length; }, t("break"), { "aria-pressed": "false" });
  const body = box("", head, main, list, after, el("details", {}, el("summary", {}, t("whatif")), box("s-row", ...query.map(s => el("label", {}, `${s.ariaLabel} `, s)), button("", replan, t("replan"))), plans));
  let shown, part = 0, check = 0, last, lates = new Set(), breaking = false, mark, seen, named, timer;
  fill(kind, ["any", "copied", "shared", STEP_SHIFT, "computed", "deferred", "refused", "no room"], word);
  fill(query[0], ["", "independent", "global", "inms"], asWas); fill(query[1], ["", 8, 16, 32, 64, 256], asWas);
  root.append(title, body, box("s-row", t("stop_at"), button("", () => go(-1), t("first")), button("", () => go(shown?.number), t("next")), kind, t("of"), who, brk, pause && el("label", {}, pause, t("pause"))), said);

  // What the kernel is asked: `put` gets the answer, and before it (or instead) what there is to say.
  const absent = () => (hub.ask ? t("waiting") : fold.explained.size ? t("newest", fold.explained.size) : t("offline"));
  const ask = (what, payload, put, say = put) => {
    if (!hub.ask) return say(t("offline"));
    say(t("waiting"));
    const late = setTimeout(() => say(t("no_answer")), 30000);
    lates.add(late);
    hub.ask(what, payload).then(put).catch(error => say(hub.t(error.message))).finally(() => { clearTimeout(late); lates.delete(late); });
  };
  const stop = (d, text) => {
    if (d) hub.selectDecision(d.number);
    said.textContent = text; hub.say(text);
  };
  function matches(d) {
    const k = kind.value;
    return (!who.value || fold.end.seqs[d.seq].name === who.value) && (k === "any" || d.outcome === k || d.parts.some(q => q[3] === k));
  }
  function go(from = -1) {
    const d = fold.decisions.find(x => x?.number > from && matches(x));
    stop(d, d ? t("found", d.number + 1) : t("none_such"));
  }
  function watch() { // the breakpoint: something has arrived, or play has moved on
    const from = mark > hub.cursor ? 0 : mark, first = seen;
    mark = hub.cursor; seen = fold.decisions.length;
    if (!breaking || hub.mode === "paused") return;
    const d = fold.decisions.find(x => x?.stop <= mark && (x.stop > from || x.number >= first) && matches(x));
    if (!d) return;
    if (pause?.checked) hub.command("pause");
    stop(d, t("stopped", d.number + 1, hub.nameOf(d.seq)));
  }
  function move(to) { // to a check; 0 shows all of them
    if (!shown) return;
    if (hub.mode !== "paused") hub.selectDecision(shown.number);
    check = Math.max(0, Math.min(7, to));
    render(hub.state());
    list.querySelector("[tabindex='0']").focus();
  }
  const dash = root.closest(".inms-dash"), keys = e => {
    const way = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[e.key];
    if (!way || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || /INPUT|SELECT/.test(e.target.tagName)) return;
    if (e.key[1] && e.target !== dash && !root.contains(e.target)) return; // other parts have arrows of their own
    e.preventDefault(); e.stopPropagation();
    move(check + way);
  };
  dash.addEventListener("keydown", keys);
  hub.said = text => stepSaid(hub, text); // for parts that tell events
  const off = [hub.on("received", watch), hub.on("seek", watch)];

  const told = () => fold.explained.get(shown.number);
  const parts = () => told()?.parts || (shown.parts[0] ? shown.parts : [[-1, 0, 0, shown.outcome, shown.reason]]).map(([segment, first_block, num_blocks, outcome, reason]) => ({ segment, first_block, num_blocks, outcome, reason }));
  const where = ({ segment, first_block: i, first = i, num_blocks: n, pool_id: pool = "", blocks = [] }) => { // counted from 0, as the log does
    const place = segment < 0 ? "" : n > 1 ? t("wheres", segment, `${first}–${first + n - 1}`) : t("where", segment, first), name = blocks[0] >= 0 ? `${pool}:${runs(blocks)}` : pool;
    return place && name ? `${name} (${place})` : place;
  };
  function text(seq, q) { // what is being decided
    const seg = seq?.segments.at(q.segment);
    if (!seg) return null;
    const from = q.segment < 0 ? seg.computed : q.first_block * seg.size, most = Math.min(seg.count - from, q.num_tokens || q.num_blocks * seg.size || seg.count);
    return most > 0 && el("p", { class: "s-text", lang: "" }, ...stepText(fold.textOf(fold.tokensOf(seg, from, Math.min(80, most)))), most > 80 ? el("i", {}, ` … ${t("more_tokens", most - 80)}`) : "");
  }
  function fragment(seq, { segment, first_block: first, outcome, checks }) { // where it was encoded, whose it is, what it costs
    const seg = seq?.segments.at(segment), own = fold.end.seqs[seg?.source], at = first * seg?.size;
    if (outcome !== STEP_SHIFT || !seg?.fragment) return [];
    return [p("", t("fragment", hub.nameOf(seg.source), own ? hub.t(`detail_w_${own.kind}`) : "", seg.encoded + at, seg.first + at)), checks && p("", stepSaid(hub, checks[5].why))];
  }
  function line({ key, verdict, why, shadow, dropped = [], function: name }, i) {
    const now = check === i + 1, hid = !verdict || check && i >= check, code = el("pre", { tabindex: 0 }), sources = fold.about.sources ||= {}, put = source => { code.textContent = sources[i + 1] = source; };
    return el("li", { "data-v": hid ? "" : verdict }, button(`c${i}`, () => move(now ? 0 : i + 1), [el("b", {}, i + 1), el("span", {}, hub.t(`check_${key}`)), el("b", {}, hid ? "" : t(`v_${verdict}`))], { "aria-current": now && "step", "aria-expanded": `${now}`, tabindex: now || !check && !i ? 0 : -1 }),
      ...(hid ? [] : [why && (verdict === "no" ? !now || !dropped[0] : now) && p("", stepSaid(hub, why)), shadow && p("s-shadow", t("shadow")),
        now && dropped[0] && el("ul", { "aria-label": t("dropped") }, ...dropped.slice(0, 12).map(({ pool_id: pool, block, refused, why }) => el("li", {}, button(pool + block, () => hub.setPin({ pool, block }), `${refused ? "◌" : "✕"} ${pool}:${block}`, { title: t("pin") }), ` ${stepSaid(hub, why)}`)), dropped[12] ? `… (${dropped.length})` : ""),
        now && el("details", { "data-k": `s${i}`, ontoggle: e => e.target.open && (i + 1 in sources ? put(sources[i + 1]) : ask("source", { check: i + 1 }, put, words => { code.textContent = words; })) }, el("summary", {}, t("code"), el("code", {}, ` ${name.replaceAll("inms_lab.", "")}`)), code)].filter(Boolean)));
  }
  function sums(key, way, all) { // what it saved or spent
    const [bytes, tokens, ms] = ["num_bytes", "num_prefill", "ms"].map(k => all.reduce((n, q) => n + Math.max(0, way * q[k]), 0));
    const out = [bytes && stepSize(bytes), tokens && t(tokens === 1 ? "token" : "tokens", tokens), ms && `≈ ${+ms.toPrecision(2)} ms`].filter(Boolean);
    return out[0] && p(`s-${key}`, `${t(key)} ${out.join(" · ")}`);
  }
  function render(state) {
    const d = shown, all = [];
    body.hidden = !d;
    if (!d) return;
    const ps = parts(), q = ps[part], cs = q.checks, step = way => button(way, () => hub.selectDecision(d.number + way), t(way), { disabled: !fold.decisions[d.number + way] });
    const turn = (way, sign) => button(sign, () => move(check + way), sign, { "aria-label": t(`turn${way}`) });
    stepPut(head, step(-1), step(1), turn(-1, "▲"), turn(1, "▼"), el("span", { class: "inms-dim" }, check ? t("check_of", check) : t("keys")));
    stepPut(main, box("s-row", ...ps.map((x, i) => button(`p${i}`, () => { part = i; check = 0; hub.change(); }, [el("strong", {}, word(x.outcome)), where(x)], { class: "s-part", "data-o": x.outcome, "aria-pressed": `${i === part}` }))), q.reason && p("", stepSaid(hub, q.reason)), ...fragment(state.seqs[d.seq], q), text(state.seqs[d.seq], q));
    stepPut(list, (cs || STEP_CHECKS).map(line), !cs && el("li", { role: "status" }, d.wait || absent()));
    for (let i = d.at; i < d.stop; i++) {
      const e = fold.event(i);
      if (e) all.push(el("li", {}, button(`e${i}`, () => { hub.decision = d.number; hub.seek(i + 1); }, `${i} ${stepTell(hub, e)}`, { title: t("seek"), "aria-current": hub.cursor === i + 1 && "true" })));
    }
    stepPut(after, cs && [sums("saved", 1, ps), sums("spent", -1, ps), ps[0].ms === null && p("inms-dim", t("no_ms"))], el("h4", {}, t(all[0] ? "events" : "no_events")), el("ul", {}, ...all));
  }
  // Both plans side by side, row by row.
  function compare({ real, other, words }) {
    const flat = side => ({ ...side, ...side.decided }), cell = (side, key) => {
      const v = flat(side)[key];
      return Array.isArray(v) ? v.map(x => (x.outcome ? `${word(x.outcome)} ${where(x)}` : stepTell(hub, x))).join("\n") : key === "outcome" ? word(v) : v && key === "num_bytes" ? stepSize(v) : `${v ?? "–"}`;
    };
    return [p("", stepSaid(hub, words)), el("table", {}, el("tr", {}, el("td"), el("th", {}, t("as_was")), el("th", {}, t("other"))),
      ...Object.keys(flat(real)).filter(key => hub.strings[`step_${key}`]).map(key => {
        const [a, b] = [cell(real, key), cell(other, key)];
        return (a || b) && el("tr", { class: a === b ? "" : "s-differs" }, el("th", {}, (a === b ? "" : "≠ ") + t(key)), el("td", {}, a), el("td", {}, b));
      }).filter(Boolean)), p("inms-dim", t("untouched"))];
  }
  function replan() {
    const { number } = shown, known = [fold.about.whatif?.[number] || []].flat(), put = nodes => { if (shown?.number === number) stepPut(plans, nodes); };
    if (!hub.ask) return put([known.map(compare), p("", t("needs_kernel"))].flat(2));
    ask("whatif", { number, ...Object.fromEntries(query.map(s => [s.name, s.value || null])) }, c => put(compare(c)), words => put(el("p", { role: "status", class: "s-note" }, words)));
  }

  return {
    draw(state) {
      const { decisions, explained } = fold, chosen = decisions[hub.decision];
      const { cursor } = hub, past = decisions.findLast(x => x?.stop <= cursor), next = past ? decisions[past.number + 1] : decisions.find(Boolean), e = fold.event(cursor - 1);
      // The one chosen while the cursor is at it, the one under way or led up to by what just happened, or the last before.
      const led = next && (next.at < cursor || e?.seq_id === next.seq && cursor > (past?.stop || 0) && /Copied|Freed|Commanded/.test(e.name));
      const d = chosen?.at <= cursor && cursor <= chosen.stop ? chosen : led ? next : past;
      if (d?.number !== shown?.number) { part = check = 0; plans.replaceChildren(); }
      shown = d;
      if (named !== fold.end.seqs.length) { // agents and groups to choose from
        named = fold.end.seqs.length;
        fill(who, ["", ...new Set(fold.end.seqs.map(q => q.name))], v => v || t("anyone"));
        fill(query[2], ["", "private", ...[...fold.end.pools.values()].map(x => x.name).filter(x => x.startsWith("group:")), "global"], asWas);
      }
      const then = d && fold.event(fold.find(d.stop, type => type === STEPPED));
      title.textContent = d ? t(cursor > d.stop ? "heading_last" : "heading", d.number + 1, decisions.length, hub.nameOf(d.seq), then?.step ?? state.step + 1) : t(decisions.length ? "none_yet" : labOpen(hub) ? "none" : "holds_none");
      const now = d ? [d.number, !decisions[d.number + 1], explained.has(d.number), d.wait, part, check, hub.cursor > d.stop || hub.cursor].join() : "";
      if (now === last) return;
      last = now;
      render(state);
      clearTimeout(timer);
      if (d && hub.ask && d.wait === undefined && !told()) timer = setTimeout(() => { // once the view rests on it
        ask("explain", { number: d.number }, e => { explained.set(d.number, e); hub.change(); }, text => { d.wait = text; hub.change(); });
      }, 250);
    },
    destroy() { for (const one of [timer, ...lates]) clearTimeout(one); dash.removeEventListener("keydown", keys); off.forEach(f => f()); },
  };
}
