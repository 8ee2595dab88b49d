// What blocks look like: glyphs, pens, colours that are worked out once, the legend.
import { el } from "./dom.js";

// From these sizes on, in pixels a block: a number; all marks. The height of a heading.
export const CELL = 13, MAP_BIG = 32, HEAD = 28,
  TIERS = { global: "◆", group: "●", private: "■", common: "▲" },
  FLASH = { new: "N", share: "S", copy: "C", move: "M", evict: "E", free: "F", abort: "X" };
const COLOURS = { // what is drawn -> its name in the style sheet
  dark: "panel", light: "strong", dim: "dim",
  new: "accent", share: "share", copy: "copy", move: "text", evict: "evict", free: "text", abort: "refuse",
};
const mapShade = n => (n < 4 ? n : n < 8 ? 4 : n < 16 ? 5 : 6); // the more holders, the lighter

// Draws on a canvas in colours of the palette `look`.
export const mapPen = (pen, look) => ({
  rect(style, ...r) { pen.fillStyle = style; pen.fillRect(...r); },
  frame(style, thick, ...r) { pen.strokeStyle = style; pen.lineWidth = thick; pen.strokeRect(...r); },
  write(text, x, y, font, style, align = "center") {
    pen.font = `${font} ${look.font}`; pen.fillStyle = style;
    pen.textAlign = align; pen.textBaseline = "middle";
    pen.fillText(text, x, y);
  },
});
// Fills the palette, so that no frame works out a colour. Colours are [red, green, blue] until then.
export function mapPaint(root, look, forced) {
  const probe = root.lastChild, pen = el("canvas", { width: 6, height: 6 }).getContext("2d"), rgb = name => {
    probe.style.color = forced ? { panel: "Canvas", dim: "GrayText" }[name] || "CanvasText" : `var(--${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  }, css = c => `rgb(${c})`, mix = (a, b, x) => a.map((v, i) => Math.round(v + (b[i] - v) * x)),
    dark = rgb("panel"), light = rgb("strong"), dim = rgb("dim"), grey = mix(dark, dim, 0.5),
    far = (a, b) => Math.abs(0.3 * (a[0] - b[0]) + 0.59 * (a[1] - b[1]) + 0.11 * (a[2] - b[2])),
    deep = forced ? dark : mix(dark, [0, 0, 0], 0.5),
    ink = c => css(far(c, dark) > 0.9 * far(c, light) ? deep : light);
  for (const name in COLOURS) look[name] = css(rgb(COLOURS[name]));
  look.line = css(grey); look.font = getComputedStyle(root).fontFamily;
  pen.strokeStyle = look.light; pen.globalAlpha = 0.7; pen.lineWidth = 1.4;
  for (const x of [-6, 0, 6]) { pen.moveTo(x - 1, 7); pen.lineTo(x + 7, -1); }
  pen.stroke(); look.hatch = pen.createPattern(pen.canvas, "repeat");
  for (const tier in TIERS) {
    const hue = rgb(tier), shades = [
      mix(dark, dim, 0.16),
      ...[0.5, 0.72, 0.92].map(x => mix(dark, hue, x)),
      ...[0.24, 0.48, 0.74].map(x => mix(hue, light, x)),
    ], lut = Uint32Array.from({ length: 101 }, (_, n) => { // by refcount; 100: cached
      const [r, g, b] = n > 99 ? grey : shades[mapShade(n)];
      return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    }), fills = shades.map(css), inks = shades.map(ink);
    look[tier] = { lut, hue: css(hue), fill: n => fills[mapShade(n)], ink: n => inks[mapShade(n)] };
  }
}

// The legend, of what is to be seen now.
export function mapLegend(node, t, look, bands, forced) {
  const most = Math.max(...bands.filter(b => b.rows).map(b => b.size)),
    { fill, ink } = look[bands[0]?.tier || "private"],
    mark = (name, style = "", text = "") => `<b class="map-mark map-${name}" style="${style}">${text}</b>`,
    filled = (c, style = "", text) => mark("", "background:" + c + style, text),
    shade = n => filled(fill(n), ";color:" + ink(n), n),
    cue = (key, icon, from) => (most < from ? "" : `<span>${icon || mark(key)}${t("l_" + key)}</span>`),
    tiers = [...new Set(bands.map(b => b.tier))]
      .map(x => ` <span style="color:${look[x].hue}">${TIERS[x]} ${t("" + x)}</span>`),
    flashes = Object.keys(FLASH)
      .map(k => ` <b style="color:${look[k]}">${FLASH[k]}</b> ${t("f_" + k)}`);
  const html = `<span>${t("l_hue")}${tiers.join("")}</span>`
    + cue(forced ? "number" : "refs", [1, 2, 4, 16].map(shade).join(""))
    + cue("pending", mark("pending", "background-color:" + fill(1)), 4)
    + cue("cached", most > 2 ? mark("cached", "", most < CELL ? "" : 0) : filled(look.line))
    + cue("free", most < CELL ? filled(fill(0)) : mark("empty"))
    + cue("shifted", "", 4) + cue("ro", "", 18) + cue("fill", "", MAP_BIG) + cue("lock", "", MAP_BIG)
    + `<span>${t("l_flash")}${flashes.join("")}</span>`;
  if (node.told !== html) node.innerHTML = node.told = html;
}
