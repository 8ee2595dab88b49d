// The transport of the picture (what is shown) and the controls of the lab (what happens).
import { el } from "./dom.js";
import { labOpen } from "./units.js";

const RATES = [1, 2, 5, 10, 25, 100, 1000]; // steps of play a second
export const BAR_GLYPHS = { copy: "◆", share: "●", shift: "◑", evict: "▲", refuse: "✕", fail: "‼", free: "○", release: "★" };
// A part's own strings, and numbers as they are written in the language of the view.
export const barWords = (hub, part) => [hub.words(part), n => n.toLocaleString(hub.lang)];
export const barSet = (node, text) => { if (node.textContent !== text) node.textContent = text; };
// `words` are what stands on it and what it does: "text\ntitle".
export const barLabel = (node, words) => {
  const [text, title = text] = words.split("\n");
  if (node.tagName === "BUTTON") barSet(node, text); else node.placeholder = text;
  return Object.assign(node, { title, ariaLabel: title });
};
export const barButton = (words, onclick) => barLabel(el("button", { type: "button", onclick }), words);

export function bar(root, hub) {
  const { fold } = hub, [t, n] = barWords(hub, "bar");
  const span = name => el("span", { class: `inms-bar-${name}` });
  const button = (key, act) => barButton(t(key), act);
  const group = (key, ...nodes) => el("div", { class: `inms-bar-${key}`, role: "group", "aria-label": t(key) }, el("b", {}, t(key)), ...nodes);
  const choice = (key, values, text, pick) => barLabel(
    el("select", { onchange: e => pick(e.target.value) }, ...values.map(v => el("option", { value: v }, text(v)))), t(key));
  let timer, watched = false;
  const note = text => {
    barSet(said, text);
    clearTimeout(timer); timer = setTimeout(() => barSet(said, ""), 5000);
  };
  const badge = span("badge"), where = el("strong"), what = span("dim"), dropped = span("dropped"), said = span("said");
  const turn = (mode, modes = [mode]) => () => hub.setMode(modes.includes(hub.mode) ? "paused" : mode);
  const moving = ["play", "loop"], play = button("play", turn("play", moving));
  const follow = button("follow", turn("follow")), loop = button("loop", turn("loop"));
  const rate = choice("rate", RATES, r => t("a_second", n(r)), r => { hub.rate = +r; });
  rate.value = hub.rate;
  const go = barLabel(el("input", { type: "number", onkeydown: event => {
    if (event.key !== "Enter" || !go.value) return;
    hub.seek(+go.value);
    const at = n(hub.cursor);
    hub.say(hub.cursor === +go.value ? t("now", at) : t("clamped", go.value, n(fold.first), n(fold.length), at), "note");
    go.value = "";
  } }), t("go"));
  const jump = (kind, way) => button("", () => hub.jump(kind, way));
  const jumps = ["copy", "share", "shift", "evict", "refuse", "fail"].map(kind => el("span", { class: `inms-bar-pill inms-bar-${kind}` },
    barLabel(jump(kind, -1), t("previous", t(kind))), `${BAR_GLYPHS[kind]} ${t(kind)}`, barLabel(jump(kind, 1), t("next", t(kind)))));
  const keys = el("dl", { hidden: true }, ...t("keys").split("\n").flatMap(line => line.split("|").map((text, i) => el(i ? "dd" : "dt", {}, text))));
  const help = button("help", () => { help.ariaExpanded = keys.hidden; keys.hidden = !keys.hidden; });
  help.ariaExpanded = false;
  const dash = root.closest(".inms-dash"), ask = event => { // "?" opens the keys, Escape closes them
    if (!(event.key === "?" || event.key === "Escape" && !keys.hidden) || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT/.test(event.target.tagName)) return;
    event.preventDefault(); event.stopPropagation();
    help.click();
  };
  dash.addEventListener("keydown", ask);
  const rows = el("div", { class: "inms-bar-rows" }, group("picture",
    button("first", () => hub.seek(fold.first)), button("back", () => hub.step(-1)), play, button("forward", () => hub.step(1)),
    button("last", () => hub.seek(fold.length)), follow, loop,
    choice("unit", ["event", "decision", "token"], u => t(`by_${u}`), u => { hub.unit = u; }), rate, go), group("jump", ...jumps));
  root.append(el("div", { class: "inms-bar-now" }, badge, where, what, dropped, said, help), keys, rows);

  const off = [hub.on("note", note)];
  if (hub.command) {
    const acts = ["run", "pause", "step"].map(k => button(`lab_${k}`, () => hub.command(k))), now = span("state"), more = span("dim");
    const speed = choice("lab_speed", ["", 10, 4, 2, 1], v => (v ? t("steps", v) : t("full")), v => hub.command("speed", +v || null));
    const all = group("lab", now, ...acts, speed, more);
    rows.append(all);
    const show = () => {
      const { state = "idle", speed: set, programs = 0, failed_updates: failed } = hub.lab, many = programs.length ?? programs;
      watched ||= labOpen(hub); // of a log that is over there is nothing to operate
      all.hidden = !watched;
      barSet(now, t(state)); now.dataset.now = state;
      for (const node of [...acts, speed]) node.disabled = !labOpen(hub);
      acts[0].ariaPressed = state === "running"; acts[1].ariaPressed = state === "paused";
      if (document.activeElement !== speed) speed.value = set || "";
      barSet(more, [many && t("programs", n(many)), failed && t("failed", n(failed))].filter(Boolean).join(" · "));
      hub.change();
    };
    off.push(hub.on("lab", show));
    show();
  }
  return {
    draw(state) {
      const { mode, cursor, lab, command } = hub, goes = moving.includes(mode), over = mode === "follow" && !labOpen(hub);
      barSet(badge, t(over ? "at_end" : `is_${mode}`, n(cursor)));
      badge.dataset.now = over ? "end" : mode;
      barSet(where, t("where", n(cursor), n(fold.length), n(state.step)));
      barSet(what, [fold.about.mode, fold.about.model, command && lab.state === "running" && mode !== "follow" && t("runs_on", n(fold.length - cursor))].filter(Boolean).join(" · "));
      barSet(dropped, fold.first ? t("dropped", n(fold.first)) : "");
      barLabel(play, t(goes ? "pause" : "play"));
      follow.ariaPressed = mode === "follow"; loop.ariaPressed = mode === "loop";
      go.min = fold.first; go.max = fold.length;
    },
    destroy() { clearTimeout(timer); dash.removeEventListener("keydown", ask); for (const stop of off) stop(); },
  };
}
