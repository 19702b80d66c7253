// The padding explorer: the rectangle that prompts are padded to, cell by cell. Every
// number is Python's; here it is put in its place and told in words.
import { Instrument, KINDS, choices, legend } from "./instrument.js";
import { control, fill, node, setText } from "./dom.js";

const MARKS = ["prompt", "pad", "last", "generated"];

class PaddingExplorer extends Instrument {
  build() {
    const { words } = this;
    this.drawn = undefined;
    this.root.classList.add("ns-padding");
    this.size = node("span.label");
    this.side = choices(words.side, ["left", "right"].map((side) => [side, words[side]]),
      (side) => this.set({ side, row: null }));
    this.picture = node("div.rectangle", { "aria-hidden": "true" });
    this.options = this.scene.names.map((_, row) =>
      node("div", { role: "option", id: `${this.uid}-row${row}` }));
    this.sheet = control("div.scroller", { role: "listbox", tabindex: "0",
      "aria-label": words.cells }, node("div.unseen", {}, ...this.options), this.picture);
    this.listen();
    this.share = node("b");
    this.bar = node("div.bar", { "aria-hidden": "true" });
    this.tensors = control("pre", { tabindex: "0", role: "group", "aria-label": words.tensors });
    return [node("div.row", {}, this.side, this.size), this.sheet,
      node("div.filled", {}, this.share, this.bar), this.marks(),
      node("details.table", {}, control("summary", {}, words.tensors), this.tensors)];
  }

  marks() {
    return legend(MARKS.map((mark) =>
      [node(`i.swatch.${mark}`, { "aria-hidden": "true" }), this.words[`${mark}_mark`]]));
  }

  listen() {
    const at = ({ target }) => target.closest("[data-column]")?.dataset;
    this.picture.addEventListener("pointerover", (event) => this.point(at(event)));
    this.sheet.addEventListener("pointerleave", () => this.point());
    this.picture.addEventListener("click", (event) => {
      const cell = at(event);
      if (cell) this.set({ row: Number(cell.row), column: Number(cell.column) });
    });
    this.sheet.addEventListener("focus", () => {
      if (this.state.row === null && this.sheet.matches(":focus-visible")) this.go(0, 0);
    });
  }

  /** A pointer over a cell only looks: where the keys stand stays. */
  point(cell) {
    const over = cell && [Number(cell.row), Number(cell.column)];
    if (String(over) === String(this.over)) return;
    this.over = over;
    this.refresh();
  }

  // --- state ---

  /** What stays when other prompts are typed. */
  kept() {
    return { side: this.state?.side ?? this.scene.opens.side };
  }

  get shown() {
    return this.scene.sides[this.state.side];
  }

  keys() {
    if (document.activeElement !== this.sheet) return {};
    const by = (rows, columns) => () => this.go((this.state.row ?? 0) + rows,
      (this.state.column ?? 0) + columns);
    const row = () => this.state.row ?? 0;
    return { ArrowRight: by(0, 1), ArrowLeft: by(0, -1), ArrowDown: by(1, 0),
      ArrowUp: by(-1, 0), Home: () => this.go(row(), 0), End: () => this.go(row(), Infinity),
      Escape: () => this.set({ row: null }) };
  }

  /** To a cell, or the nearest: past the last column stands the next token. */
  go(row, column) {
    const within = (at, most) => Math.max(0, Math.min(most, at));
    this.set({ row: within(row, this.scene.names.length - 1),
      column: within(column, this.shown.ids[0].length) });
    this.cellAt(this.state.row, this.state.column).scrollIntoView(
      { block: "nearest", inline: "nearest" });
  }

  cellAt(row, column) {
    return this.picture.querySelector(`[data-row="${row}"][data-column="${column}"]`);
  }

  // --- drawing ---

  show() {
    if (this.drawn !== this.shown) this.drawSide();
    for (const cell of this.picture.querySelectorAll(".ns-here")) {
      cell.classList.remove("ns-here");
    }
    const here = this.here();
    if (here) this.cellAt(...here).classList.add("ns-here");
    const { row, column } = this.state;
    this.options.forEach((option, at) => {
      setText(option, this.cellWords(at, column ?? 0));
      option.setAttribute("aria-selected", at === row);
    });
    if (row === null) this.sheet.removeAttribute("aria-activedescendant");
    else this.sheet.setAttribute("aria-activedescendant", this.options[row].id);
  }

  here() {
    return this.over ?? (this.state.row === null ? null : [this.state.row, this.state.column]);
  }

  /** All that only another side or other prompts change. */
  drawSide() {
    const { scene, shown, words } = this;
    this.drawn = shown;
    const width = shown.ids[0].length;
    this.side.pick(this.state.side);
    this.root.setAttribute("aria-label", `${words.name}: ${this.title()}`);
    setText(this.size, fill(words.size, { rows: scene.names.length, width, cells: scene.cells }));
    setText(this.share, fill(words.share, scene));
    this.picture.style.setProperty("--columns", width);
    this.picture.classList.toggle("ns-narrow", width > 14);
    this.picture.replaceChildren(...this.axis(width),
      ...scene.names.flatMap((_, row) => this.band(row, width)));
    this.bar.replaceChildren(...this.segments());
    const lines = (name) => shown[name].map((row) => `[${row.join(", ")}]`).join(",\n ");
    setText(this.tensors, ["ids", "mask", "positions"].map((name) =>
      `${name}\n[${lines(name)}]`).join("\n\n"));
  }

  axis(width) {
    const heads = Array.from({ length: width }, (_, column) => node("span.column", {}, column));
    return [node("span.column.first.side", {}, this.words.column), ...heads,
      node("span.column", {}, this.words.next), node("span")];
  }

  /** One prompt: its name, its cells, where its next token will stand, its pads. */
  band(row, width) {
    const { words, shown, scene } = this;
    const pads = shown.mask[row].filter((real) => !real).length;
    const names = ["mask", "position"].map((line) => node("span", {}, words[line]));
    const cells = Array.from({ length: width }, (_, column) => this.cell(row, column));
    const parts = [node("div.line.side", {}, node("b.chip", {}, scene.names[row]), ...names),
      ...cells, this.nextCell(row, width),
      node("span.count", {}, pads === 1 ? words.one_pad : fill(words.pads, { count: pads }))];
    for (const part of parts) part.style.setProperty("--hue", this.hue(row));
    return parts;
  }

  cell(row, column) {
    const { shown, scene } = this;
    const [id, real, position] = ["ids", "mask", "positions"].map((name) =>
      shown[name][row][column]);
    const last = column === shown.last[row] ? ".last" : "";
    return node(`div.cell.${real ? "prompt" : "pad"}${last}`,
      { "data-row": row, "data-column": column },
      node("b", {}, real ? scene.tokens[id] : "", node("small", {}, id)),
      node("span", {}, real), node("span", {}, position));
  }

  nextCell(row, column) {
    return node("div.cell.generated", { "data-row": row, "data-column": column },
      node("b", {}, "…"), node("span", {}, 1), node("span", {}, this.shown.next[row]));
  }

  /** Who fills the rectangle: the tokens of each row, then the pads of all. */
  segments() {
    const { scene, shown } = this;
    const part = (kind, count, name, hue) => {
      const made = node("i", { class: `ns-${kind}` }, name);
      made.style.flexGrow = count;
      if (hue) made.style.setProperty("--hue", hue);
      return made;
    };
    const rows = scene.names.map((name, row) =>
      part("prompt", shown.mask[row].filter((real) => real).length, name, this.hue(row)));
    return scene.pads ? [...rows, part("pad", scene.pads, "")] : rows;
  }

  hue(row) {
    return this.look.hues[row % this.look.hues.length];
  }

  // --- in words ---

  sentence() {
    const here = this.here();
    return here ? this.cellWords(...here) : this.summary();
  }

  /** What `summary` in padding_explorer.py says. */
  summary() {
    const { words, shown, scene } = this;
    const last = new Set(shown.last).size > 1
      ? fill(words.last_columns, { columns: shown.last.join(", ") })
      : fill(words.same_last, { columns: shown.last[0] });
    return fill(words.summary, { side: words[this.state.side], share: fill(words.share, scene), last });
  }

  title() {
    return fill(this.words.title, { side: this.words[this.state.side] });
  }

  cellWords(row, column) {
    const { words, shown, scene } = this;
    const values = { row: scene.names[row], column };
    if (column === shown.ids[row].length) {
      return fill(words.cell_next, { ...values, position: shown.next[row] });
    }
    const id = shown.ids[row][column];
    Object.assign(values, { id, token: scene.tokens[id], position: shown.positions[row][column] });
    const cell = fill(words[shown.mask[row][column] ? "cell_real" : "cell_pad"], values);
    return column === shown.last[row] ? fill(words.cell_last, { cell }) : cell;
  }
}

KINDS["padding-explorer"] = PaddingExplorer;
