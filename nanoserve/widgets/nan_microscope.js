// The NaN microscope: two runs side by side, one masked with the lowest finite number,
// one with -inf. Above, the hidden states of all rows, layer by layer, as far as one
// has stepped; below, one row in this layer, from its scores to the state that goes on.
import { control, node, setText } from "./dom.js";
import { Sheet } from "./grid.js";
import { Instrument, KINDS, choices, codeLegend, stepper } from "./instrument.js";

const LABEL = 76; // pixels left of a matrix for the queries' tokens
const STRIP = 7; // between a matrix and the strips beside it

class NaNMicroscope extends Instrument {
  // --- built once for each scene ---

  build() {
    const { scene, words } = this;
    this.stages = scene.stages;
    this.rows = choices(words.row, scene.rows.map((row, place) => [place, row.name]),
      (row) => this.set({ row }));
    this.steps = stepper(words, scene.layers * this.stages.length,
      (step) => this.set({ step }), 1100);
    this.panels = Object.keys(scene.fills).map((name) => this.buildPanel(name));
    this.pair = control("div.pair", { role: "slider", tabindex: "0", "aria-valuemin": 1,
      "aria-valuemax": scene.width, "aria-orientation": "vertical" },
      ...this.panels.map((panel) => panel.element));
    const title = node("p.title", {}, node("b", {}, words.name), " ",
      node("span", {}, scene.title));
    return [title, node("div.row", {}, this.rows, this.steps), this.pair,
      codeLegend(this, "?")];
  }

  buildPanel(name) {
    const { scene, words, look } = this;
    const rows = scene.fills[name].map((found, place) => {
      const verdict = node("span");
      const sheet = new Sheet(look);
      const element = node("div.spread", { style: `--hue: ${scene.rows[place].hue}` },
        node("p", {}, node("b", {}, scene.rows[place].name), verdict), sheet.element);
      return { found, verdict, sheet, element };
    });
    const sheet = new Sheet(look);
    this.point(sheet, name);
    const heading = node("p.label", {}, words[`fill_${name}`]);
    const element = node("div.fill", {}, heading, ...rows.map((row) => row.element),
      sheet.element);
    return { name, rows, sheet, element };
  }

  /** Hover or touch a query of a matrix. */
  point(sheet) {
    const pick = (event) => {
      const box = sheet.element.getBoundingClientRect();
      const scale = sheet.element.viewBox.baseVal.height / box.height;
      const query = Math.floor(((event.clientY - box.top) * scale - this.top) / this.size);
      const inside = query >= 0 && query < this.scene.width;
      if (inside && query !== this.state.query) this.set({ query });
    };
    sheet.element.addEventListener("pointermove", pick);
    sheet.element.addEventListener("pointerdown", pick);
  }

  // --- state ---

  get layer() {
    return Math.floor(this.state.step / this.stages.length);
  }

  get stage() {
    return this.stages[this.state.step % this.stages.length];
  }

  /** Has this stage of the current layer been reached? */
  reached(stage) {
    return this.stages.indexOf(stage) <= this.stages.indexOf(this.stage);
  }

  keys() {
    const by = (count) => () => this.set({
      query: Math.min(this.scene.width - 1, Math.max(0, this.state.query + count)) });
    const walk = (count) => () => this.steps.to(count);
    return { ArrowUp: by(-1), ArrowDown: by(1), Home: by(-999), End: by(999),
      ArrowLeft: walk(-1), ArrowRight: walk(1),
      PageUp: walk(-this.stages.length), PageDown: walk(this.stages.length) };
  }

  // --- shown at each state ---

  show() {
    const { state, scene, words } = this;
    this.rows.pick(state.row);
    this.steps.show(state.step, this.say("at", { layer: this.layer + 1,
      layers: scene.layers, stage: words[`stage_${this.stage}`] }));
    this.measure();
    for (const panel of this.panels) {
      panel.rows.forEach((row, place) => this.drawSpread(row, place));
      this.drawMatrix(panel);
    }
    for (const [key, value] of Object.entries({ valuenow: state.query + 1,
      label: this.say("query", { row: scene.rows[state.row].name }),
      valuetext: this.sentence() })) {
      this.pair.setAttribute(`aria-${key}`, value);
    }
  }

  /** Cells as large as there is room for in half of the width, or all of it. */
  measure() {
    const all = (this.root.clientWidth || 960) - 36;
    const room = all < 700 ? all : (all - 28) / 2;
    const { width, layers } = this.scene;
    const cells = (room - LABEL - 2 * STRIP - 34) / (width + 2);
    this.size = Math.max(5, Math.min(18, Math.floor(cells)));
    this.small = Math.max(4, Math.min(14, Math.floor((room - 30) / width),
      Math.floor(150 / layers)));
  }

  marks(lines) {
    const { codes } = this.scene;
    return lines.map((line) => [...line].map((code) => codes[code]));
  }

  /** A row's hidden states: a line for each layer that is through. */
  drawSpread({ found, verdict, sheet, element }, place) {
    const { scene, state, small } = this;
    const done = this.layer + (this.stage === "hidden" ? 1 : 0);
    const lines = found.layers.map((layer, number) =>
      number < done ? scene.lines[layer.hidden] : "?".repeat(scene.width));
    sheet.clear();
    sheet.grid(this.marks(lines), 22, 1, small, scene.rows[place].hue);
    for (let layer = 0; layer < scene.layers; layer += small < 9 ? 5 : 1) {
      sheet.write(String(layer + 1), 16, 1 + (layer + 0.5) * small, { "text-anchor": "end",
        class: layer === this.layer ? "ns-strong" : "ns-dim" });
    }
    sheet.box(21, this.layer * small, scene.width * small + 2, small + 2, { class: "ns-ring" });
    sheet.done();
    element.classList.toggle("ns-on", place === state.row);
    setText(verdict, this.verdict(found, done));
  }

  /** What became of a row so far, and at the end what it says. */
  verdict(found, done) {
    const { words, scene } = this;
    const seen = (layer) => layer !== null && layer <= done;
    const told = seen(found.real) ? this.say("poisoned", found)
      : seen(found.pads) ? this.say("pads_only", found) : words.clean;
    if (done < scene.layers) return told;
    const next = found.next === null ? words.no_next : this.say("next", { token: found.next });
    return `${told} · ${next}`;
  }

  drawMatrix({ name, sheet }) {
    const { scene, state, size } = this;
    const row = scene.rows[state.row];
    const layer = scene.fills[name][state.row].layers[this.layer];
    const line = (key, stage) => (this.reached(stage)
      ? scene.lines[layer[key]] : "?".repeat(scene.width));
    const matrix = (this.reached("weights") ? layer.weights : layer.scores).map((number) =>
      scene.lines[number]);
    this.top = 22 + size + STRIP;
    const [right, wide] = [LABEL + size * scene.width + STRIP, size * scene.width];
    const quiet = { "text-anchor": "end", class: "ns-dim" };
    sheet.clear();
    sheet.write(this.words.values, LABEL - 8, 22 + size / 2, quiet);
    sheet.grid(this.marks([line("values", "out")]), LABEL, 22, size, row.hue);
    sheet.grid(this.marks(matrix), LABEL, this.top, size, row.hue);
    ["out", "hidden"].forEach((key, place) => {
      const x = right + place * (size + STRIP);
      const cells = this.marks([line(key, key)])[0].map((mark) => [mark]);
      sheet.grid(cells, x, this.top, size, row.hue);
      const middle = x + size / 2;
      sheet.write(this.words[key], middle, this.top - 6, { class: "ns-dim",
        transform: `rotate(-55 ${middle} ${this.top - 6})` });
    });
    row.tokens.forEach((token, place) => {
      const strong = place === state.query ? "ns-strong" : row.kinds[place] === "p" ? "ns-dim" : "";
      sheet.write(token.length > 9 ? `${token.slice(0, 8)}…` : token, LABEL - 8,
        this.top + (place + 0.5) * size, { "text-anchor": "end", class: strong });
    });
    sheet.box(LABEL - 1, this.top + state.query * size - 1, wide + 2, size + 2,
      { class: "ns-ring" });
    sheet.done(right + 2 * (size + STRIP) + 22);
  }

  // --- in words, as nan_microscope.py's sentence ---

  sentence() {
    const { scene, state, words } = this;
    const row = scene.rows[state.row];
    const told = Object.keys(scene.fills).map((name) => this.say("said_fill",
      { fill: words[`said_${name}`], told: this.told(name) }));
    return this.say("said", { layer: this.layer + 1, layers: scene.layers,
      stage: words[`stage_${this.stage}`], row: row.name, query: state.query + 1,
      token: row.tokens[state.query], told: told.join(" ") });
  }

  told(name) {
    const { scene, state, words, stage } = this;
    const layer = scene.fills[name][state.row].layers[this.layer];
    if (stage === "out") return words[`why_${scene.lines[layer.why][state.query]}`];
    if (stage === "hidden") return words[`state_${scene.lines[layer.hidden][state.query]}`];
    const line = scene.lines[layer[stage][state.query]];
    const codes = Object.keys(words).filter((word) => word.startsWith("count_")).map((word) =>
      word.slice("count_".length));
    const counts = codes.filter((code) => line.includes(code)).map((code) =>
      this.say(`count_${code}`, { count: line.split(code).length - 1 }));
    return this.say(`said_${stage}`, { keys: line.length,
      counts: counts.join(words.joined_by) });
  }
}

KINDS["nan-microscope"] = NaNMicroscope;
