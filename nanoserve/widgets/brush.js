// Colour and pattern: how a state looks, wherever it stands. Never told by colour alone:
// pads are hatched, what is finished and held is crossed, an idle seat is a dashed
// outline, a prompt is darker than what was generated.

/** The colours of the page as it is now: light, dark or print. */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--ns-${name}`).trim();
  return { paper: colour("paper"), ink: colour("ink"), quiet: colour("quiet"),
    line: colour("line"), tint: Number(colour("tint")), solid: Number(colour("solid")),
    lift: Number(colour("lift")), mono: colour("mono"), scale: Number(colour("scale")) };
}

/** A canvas made ready for `width` x `height` page pixels, sharp on any screen. */
export function brushFor(canvas, width, height, theme, hues) {
  const density = Math.max(window.devicePixelRatio || 1, theme.density ?? 1);
  canvas.width = Math.max(1, Math.round(width * density));
  canvas.height = Math.max(1, Math.round(height * density));
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.textBaseline = "middle";
  return { pen, theme, hues, density, width, height, patterns: new Map() };
}

/** A request's hue; on dark paper a little towards white, or blue would sink in. */
export function hueOf({ hues, theme: { lift } }, index) {
  const hue = hues[index % hues.length];
  const part = (at) => Number.parseInt(hue.slice(at, at + 2), 16);
  const lifted = [1, 3, 5].map((at) => Math.round(part(at) + (255 - part(at)) * lift));
  return `rgb(${lifted})`;
}

export function font(brush, size, weight = "normal") {
  brush.pen.font = `${weight} ${size * brush.theme.scale}px ${brush.theme.mono}`;
}

// --- patterns ---

function pattern(brush, kind, colour, size) {
  const key = kind + colour + size;
  if (!brush.patterns.has(key)) {
    const made = brush.pen.createPattern(tile(brush, kind, colour, size), "repeat");
    made.setTransform(new DOMMatrix().scale(1 / brush.density));
    brush.patterns.set(key, made);
  }
  return brush.patterns.get(key);
}

function tile(brush, kind, colour, size) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size * brush.density;
  const pen = canvas.getContext("2d");
  pen.scale(brush.density, brush.density);
  pen.strokeStyle = colour;
  pen.lineWidth = kind === "pad" ? 1.5 : 1.1;
  const hatch = [[-1, size + 1, size + 1, -1], [-1, 1, 1, -1],
    [size - 1, size + 1, size + 1, size - 1]];
  const cross = [[0, 0, size, size], [size, 0, 0, size]];
  for (const [x, y, right, low] of kind === "pad" ? hatch : cross) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(right, low);
    pen.stroke();
  }
  return canvas;
}

// --- one state, wherever it stands: score, KV bar, bill, legend ---

/** Fill a box with `state`; `pads` is the share of a prompt's cell that is padding. */
export function fillState(brush, state, hue, [x, y, width, height], pads = 0) {
  const { pen, theme } = brush;
  const fill = (style, alpha, top, tall) => {
    pen.globalAlpha = alpha;
    pen.fillStyle = style;
    pen.fillRect(x, top, width, tall);
    pen.globalAlpha = 1;
  };
  if (state === "finished") {
    fill(pattern(brush, "held", hue, height < 14 ? 5 : 8), 0.85, y, height);
  } else if (state === "prefill") {
    fill(hue, theme.solid, y + height * pads, height * (1 - pads));
    if (pads) fill(pattern(brush, "pad", hue, 5), 1, y, height * pads);
  } else {
    // where no token is to be read, the colour may be stronger
    fill(hue, height < 12 ? 2 * theme.tint : theme.tint, y, height);
  }
  if (width >= 4 && height >= 8) outline(brush, hue, [x, y, width, height]);
}

export function outline(brush, colour, [x, y, width, height], dash = [], thick = 1) {
  const { pen } = brush;
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.setLineDash(dash);
  pen.strokeRect(x + thick / 2, y + thick / 2, width - thick, height - thick);
  pen.setLineDash([]);
}

export function idle(brush, box) {
  brush.pen.globalAlpha = 0.75;
  outline(brush, brush.theme.quiet, box, box[3] >= 8 ? [3, 3] : []);
  brush.pen.globalAlpha = 1;
}

export function write(brush, words, x, y, align, colour = brush.theme.ink) {
  brush.pen.textAlign = align;
  brush.pen.fillStyle = colour;
  brush.pen.fillText(words, x, y);
}

/** With a halo of paper, so that it reads on any pattern. */
export function writeOver(brush, words, x, y, align) {
  const { pen, theme } = brush;
  pen.textAlign = align;
  pen.lineJoin = "round";
  pen.lineWidth = 4 * theme.scale;
  pen.strokeStyle = theme.paper;
  pen.globalAlpha = 0.85;
  pen.strokeText(words, x, y);
  pen.globalAlpha = 1;
  write(brush, words, x, y, align);
}

export function short(brush, text, room) {
  const most = Math.floor(room / brush.pen.measureText("0").width);
  if (text.length <= most) return text;
  return most > 1 ? `${text.slice(0, most - 1)}…` : "";
}

/** One small sample of a state, for the legend and the bill. */
export function drawMark(canvas, state, theme, hues) {
  const brush = brushFor(canvas, 18, 12, theme, hues);
  const box = [0, 0, brush.width, brush.height];
  const pads = state === "pad" ? 1 : 0;
  if (state === "idle") outline(brush, theme.quiet, box, [3, 3]);
  else if (state === "free") outline(brush, theme.quiet, box);
  else fillState(brush, pads ? "prefill" : state, theme.quiet, box, pads);
}
