// The mask explorer: for one row of a batch a matrix, queries downwards, keys across.
// Its lines come from Python; here they are only put in their places.
import { control, node, setText } from "./dom.js";
import { Sheet } from "./grid.js";
import { Instrument, KINDS, choices, codeLegend, stepper, toggle } from "./instrument.js";

const LABEL = 84; // pixels left of the matrix for the queries' tokens
const HEAD = 66; // and above it for the keys'

class MaskExplorer extends Instrument {
  // --- built once for each scene ---

  build() {
    const { scene, words, look } = this;
    this.rows = choices(words.row, scene.rows.map((row, place) => [place, row.name]),
      (row) => this.set({ row }));
    this.parts = ["causal", "padding"].map((part) =>
      toggle(words[part], () => this.set({ shown: this.switched(part) })));
    this.sheet = new Sheet(look);
    this.matrix = control("div.matrix", { role: "slider", tabindex: "0",
      "aria-orientation": "vertical", "aria-valuemin": 1 }, this.sheet.element);
    this.point();
    this.list = node("p.tokens", { "aria-hidden": "true" });
    this.heading = node("p.label");
    this.steps = scene.steps ? stepper(words, scene.steps + 1, (step) => this.step(step)) : null;
    const title = node("p.title", {}, node("b", {}, words.name), " ",
      node("span", {}, scene.title));
    return [title, node("div.row", {}, this.rows, ...this.parts),
      ...(this.steps ? [node("div.row", {}, this.steps)] : []),
      node("div.sides", {}, this.matrix, node("div.aside", {}, this.buildAnswers(),
        this.heading, this.list, codeLegend(this)))];
  }

  buildAnswers() {
    const { words, scene } = this;
    const head = ["row", "asked", "answers", "alone"].map((key) =>
      node("th", { scope: "col" }, words[key]));
    this.lines = scene.rows.map((row) => node("tr", {},
      node("th", { scope: "row", style: `--hue: ${row.hue}` }, row.name),
      node("td", {}, row.prompt), node("td", {}, row.answer || words.nothing),
      node("td", {}, row.same ? words.same : row.right)));
    return node("table.answers", {}, node("thead", {}, node("tr", {}, ...head)),
      node("tbody", {}, ...this.lines));
  }

  /** Hover or touch a query. */
  point() {
    const pick = (event) => {
      const box = this.sheet.element.getBoundingClientRect();
      const scale = this.sheet.element.viewBox.baseVal.height / box.height;
      const query = Math.floor(((event.clientY - box.top) * scale - HEAD) / this.size);
      if (query >= 0 && query < this.columns && query !== this.state.query) this.set({ query });
    };
    this.matrix.addEventListener("pointermove", pick);
    this.matrix.addEventListener("pointerdown", pick);
  }

  // --- state ---

  get row() {
    return this.scene.rows[this.state.row];
  }

  get columns() {
    return this.scene.width + this.state.step;
  }

  switched(part) {
    const on = { causal: ["both", "causal"].includes(this.state.shown),
      padding: ["both", "padding"].includes(this.state.shown) };
    on[part] = !on[part];
    return on.causal && on.padding ? "both" : on.causal ? "causal" : on.padding ? "padding" : "none";
  }

  /** To another step: its newest query, or at the prompt the one that was seen last. */
  step(step) {
    const query = step ? this.scene.width + step - 1 : this.row.kinds.lastIndexOf("r");
    this.set({ step, query });
  }

  keys() {
    const by = (count) => () => this.set({
      query: Math.min(this.columns - 1, Math.max(0, this.state.query + count)) });
    const walk = (count) => () => this.steps?.to(count);
    return { ArrowUp: by(-1), ArrowDown: by(1), Home: by(-999), End: by(999),
      ArrowLeft: walk(-1), ArrowRight: walk(1) };
  }

  // --- shown at each state ---

  show() {
    const { state, scene, words, row } = this;
    this.rows.pick(state.row);
    this.parts[0].pick(["both", "causal"].includes(state.shown));
    this.parts[1].pick(["both", "padding"].includes(state.shown));
    this.steps?.show(state.step, state.step
      ? this.say("step_new", { step: state.step, steps: scene.steps }) : words.step_prompt);
    this.lines.forEach((line, place) => line.classList.toggle("ns-on", place === state.row));
    this.marks = this.linesShown().map((line) => [...line].map((code) => scene.codes[code]));
    this.drawMatrix();
    this.listTokens();
    setText(this.heading, this.say("sees", { query: state.query + 1 }));
    const said = this.sentence();
    for (const [key, value] of Object.entries({ label: this.say("query", { row: row.name }),
      valuemax: this.columns, valuenow: state.query + 1, valuetext: said })) {
      this.matrix.setAttribute(`aria-${key}`, value);
    }
  }

  /** The lines of the matrix at this step, a code a key. */
  linesShown() {
    return this.row.matrix[this.state.shown].slice(0, this.columns).map((number) =>
      this.scene.lines[number]);
  }

  drawMatrix() {
    const { sheet, row, columns, state, scene } = this;
    const widest = scene.width + scene.steps; // so that cells keep their size
    const room = Math.min(620, (this.root.clientWidth || 960) - 36);
    this.size = Math.max(9, Math.min(24, Math.floor((room - LABEL - 40) / widest)));
    sheet.clear();
    sheet.grid(this.marks, LABEL, HEAD, this.size, row.hue);
    const seen = this.marks[state.query];
    row.tokens.slice(0, columns).forEach((token, place) => {
      const middle = (place + 0.5) * this.size;
      const strong = place === state.query ? "ns-strong" : "";
      sheet.write(short(token), LABEL - 8, HEAD + middle, { "text-anchor": "end", class: strong });
      const [x, y] = [LABEL + middle, HEAD - 8];
      sheet.write(short(token), x, y, { transform: `rotate(-55 ${x} ${y})`,
        class: SEEN.has(seen[place]) ? "ns-strong" : "ns-dim" });
    });
    sheet.box(LABEL - 1, HEAD + state.query * this.size - 1, seen.length * this.size + 2,
      this.size + 2, { class: "ns-ring" });
    sheet.done(LABEL + columns * this.size + 44);
  }

  listTokens() {
    const marks = this.marks[this.state.query];
    this.list.replaceChildren(...marks.map((mark, key) => {
      const kind = SEEN.has(mark) ? "ns-seen" : "ns-hidden";
      const wrong = ["leak", "lost", "nan"].includes(mark) ? " ns-wrong" : "";
      return node("span", { class: kind + wrong, style: `--hue: ${this.row.hue}` },
        this.row.tokens[key]);
    }));
  }

  // --- in words, as mask_explorer.py's sentence ---

  sentence() {
    const { row, state, scene } = this;
    const line = scene.lines[row.matrix[state.shown][state.query]];
    const seen = row.tokens.filter((_, key) => "sixn".includes(line[key] ?? "-"));
    const count = (code) => [...line].filter((each) => each === code).length;
    const told = (key, code) => (count(code) ? this.say(`said_${key}`, { count: count(code) }) : "");
    return this.say("said", { row: row.name, query: state.query + 1,
      token: row.tokens[state.query], kind: this.words[`kind_${row.kinds[state.query]}`],
      count: seen.length, keys: line.length,
      tokens: seen.length ? this.say("said_tokens", { tokens: grouped(seen) }) : "",
      leaks: told("leaks", "x"), lost: told("lost", "o"), nan: told("nan", "n"),
      shown: this.words[`shown_${state.shown}`] });
  }
}

const SEEN = new Set(["seen", "itself", "leak", "nan"]);

const short = (token) => (token.length > 9 ? `${token.slice(0, 8)}…` : token);

/** Words in a row, equal neighbours counted. */
function grouped(tokens) {
  const groups = [];
  for (const token of tokens) {
    if (groups.at(-1)?.[0] === token) groups.at(-1)[1] += 1;
    else groups.push([token, 1]);
  }
  return groups.map(([token, count]) => (count > 1 ? `${count} × ${token}` : token)).join(", ");
}

KINDS["mask-explorer"] = MaskExplorer;
