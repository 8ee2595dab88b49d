// Elements and canvases of a page.
export function el(tag, attributes = {}, ...children) { // an element with attributes and children
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
    else if (v !== false && v != null) node.setAttribute(k, v === true ? "" : v);
  }
  node.append(...children.filter(c => c != null && c !== false));
  return node;
}

// A canvas that is as sharp as the screen; draws again when its size or its visibility changes.
export function sharp(canvas, redraw) {
  const all = [new IntersectionObserver(e => e.some(x => x.isIntersecting) && redraw()), new ResizeObserver(redraw)];
  for (const one of all) one.observe(canvas);
  return () => all.forEach(one => one.disconnect());
}
export function fit(canvas, width, height) { // CSS pixels; gives a context in CSS pixels
  const ratio = devicePixelRatio, [w, h] = [width, height].map(x => Math.max(1, Math.round(x * ratio)));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
