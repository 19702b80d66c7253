// Grids of small cells, each with a mark, as SVG that takes its colours from the page.
// The marks come from Python (grid.py): one table for stills and for pages.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = { ink: "var(--ns-ink)", paper: "var(--ns-paper)", quiet: "var(--ns-quiet)",
  tint: "calc(var(--ns-tint) * 1.8)" };
let sheets = 0;

/** An SVG element with attributes and children, or words. */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A picture that is drawn anew at each state: clear, add, then `done`. */
export class Sheet {
  constructor(look) {
    Object.assign(this, { look, name: `ng${(sheets += 1)}` });
    this.element = drawn("svg", { "aria-hidden": "true" });
    this.clear();
  }

  clear() {
    Object.assign(this, { parts: [], patterns: new Map(), width: 0, height: 0 });
  }

  add(part, right = 0, low = 0) {
    this.parts.push(part);
    this.width = Math.max(this.width, right);
    this.height = Math.max(this.height, low);
  }

  /** Lines of marks by name, cells `size` wide, from `x`, `y` on. */
  grid(lines, x, y, size, hue) {
    lines.forEach((line, place) => {
      for (let at = 0; at < line.length;) {
        let end = at + 1;
        while (end < line.length && line[end] === line[at]) end += 1;
        if (line[at]) {
          const fill = `url(#${this.pattern(line[at], x, y, size, hue)})`;
          this.box(x + at * size, y + place * size, (end - at) * size, size, { style: `fill: ${fill}` });
        }
        at = end;
      }
    });
  }

  pattern(mark, x, y, size, hue) {
    const key = [mark, x, y, size, hue].join("|");
    if (!this.patterns.has(key)) {
      const id = `${this.name}-${this.patterns.size}`;
      const pattern = drawn("pattern", { id, x, y, width: size, height: size,
        patternUnits: "userSpaceOnUse" });
      pattern.innerHTML = `<g transform="scale(${size})">${this.coloured(mark, hue)}</g>`;
      this.patterns.set(key, pattern);
    }
    return this.patterns.get(key).id;
  }

  coloured(mark, hue) {
    const colours = { ...COLOURS,
      hue: `color-mix(in srgb, ${hue}, white calc(var(--ns-lift) * 100%))` };
    return this.look.marks[mark].replace(/\{(\w+)\}/g, (_, name) => colours[name]);
  }

  box(x, y, width, height, attributes) {
    this.add(drawn("rect", { x, y, width, height, ...attributes }), x + width, y + height);
  }

  write(words, x, y, attributes = {}) {
    this.add(drawn("text", { x, y, ...attributes }, words), 0, y + 4);
  }

  done(width = this.width) {
    const [wide, high] = [Math.ceil(Math.max(width, this.width)), Math.ceil(this.height + 2)];
    this.element.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    this.element.setAttribute("width", wide);
    this.element.setAttribute("height", high);
    this.element.replaceChildren(drawn("defs", {}, ...this.patterns.values()), ...this.parts);
  }
}

/** One mark by itself, for the legend. */
export function sample(look, mark, hue) {
  const sheet = new Sheet(look);
  sheet.grid([[mark]], 0, 0, 16, hue);
  sheet.height -= 2;
  sheet.done();
  sheet.element.setAttribute("class", "ns-sample");
  return sheet.element;
}
