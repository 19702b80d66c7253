// A batch beside the same prompts alone, token by token under a playhead. What differs,
// from where and by how much is Python's to say; here it is put in its place.
import { Instrument, KINDS, legend, stepper } from "./instrument.js";
import { control, fill, iconButton, node, setText } from "./dom.js";

const POWERS = 6; // classes of errors above the lowest; beyond them stands NaN

class CompareAlone extends Instrument {
  build() {
    const { words, scene } = this;
    this.root.classList.add("ns-compare");
    this.picture = node("div.rectangle", { "aria-hidden": "true" }, ...this.axis(),
      ...scene.rows.flatMap((row, number) => this.band(row, number)));
    this.picture.style.setProperty("--columns", scene.steps);
    this.picture.style.setProperty("--lines", 4 * scene.rows.length);
    this.playhead = node("div.head", {}, node("b"));
    this.veil = node("div.after");
    this.picture.append(this.veil, this.playhead);
    this.options = scene.rows.map((_, row) =>
      node("div", { role: "option", id: `${this.uid}-row${row}` }));
    this.scroller = control("div.scroller", { role: "listbox", tabindex: "0",
      "aria-label": words.rows }, node("div.unseen", {}, ...this.options), this.picture);
    this.stepper = this.buildStepper();
    this.picture.addEventListener("click", ({ target }) => this.pick(target));
    return [this.verdicts(), this.scroller, this.stepper, this.marks(), this.table()];
  }

  buildStepper() {
    const { words, scene } = this;
    const made = stepper(words, scene.steps, (step) => this.go(step));
    this.events = [...new Set(scene.rows.map(({ differs }) => differs))]
      .filter((step) => step !== null).sort((one, other) => one - other);
    const [before, after] = ["previous_event", "next_event"].map((key) =>
      iconButton(key, words[key]));
    before.addEventListener("click", () => this.jump(-1));
    after.addEventListener("click", () => this.jump(1));
    made.prepend(before);
    made.querySelector('[data-control="forward"]').after(after);
    Object.assign(this, { before, after });
    return made;
  }

  /** Which rows stay clean and which do not, by name. */
  verdicts() {
    const { words, scene } = this;
    const items = ["differs", "lucky", "ill", "clean"].map((verdict) => {
      const rows = scene.rows.filter((row) => row.verdict === verdict).map((row) =>
        (row.differs === null ? row.name
          : fill(words.differs_row, { row: row.name, number: row.differs + 1 })));
      const told = fill(words[verdict], { rows: rows.join(words.joined_by) });
      return rows.length ? [node("li", { "data-verdict": verdict }, told)] : [];
    });
    return node("div.verdicts", {}, node("b", {}, scene.title), node("ul", {}, ...items.flat()));
  }

  axis() {
    const numbers = Array.from({ length: this.scene.steps }, (_, step) =>
      this.placed(node("span.column", { "data-step": step }, step + 1), 1, step + 2));
    return [this.placed(node("span.column.first.side", {}, this.words.token), 1, 1), ...numbers];
  }

  /** One row: its prompt, its two answers, its errors. */
  band(row, number) {
    const { words, scene } = this;
    const top = 2 + 4 * number;
    const chip = node("b.chip", {}, row.name);
    const asked = node("p.asked", {}, node("span", {}, row.prompt));
    const parts = [this.placed(node("div.side", {}, chip), top, 1), this.placed(asked, top, 2)];
    ["alone", "batch", "error"].forEach((key, lane) => {
      parts.push(this.placed(node("span.lane.side", {}, words[key]), top + 1 + lane, 1));
    });
    for (let step = 0; step < scene.steps; step += 1) {
      for (const [lane, cell] of this.cellsAt(row, step).entries()) {
        if (cell) parts.push(this.placed(cell, top + 1 + lane, step + 2));
        cell?.setAttribute("data-step", step);
        cell?.setAttribute("data-row", number);
      }
    }
    for (const part of parts) part.style.setProperty("--hue", this.hue(number));
    return parts;
  }

  placed(part, row, column) {
    part.style.gridArea = `${row} / ${column}`;
    return part;
  }

  /** Alone, in the batch, the error; undefined where there is nothing. */
  cellsAt(row, step) {
    const parted = row.differs !== null && step >= row.differs;
    const [alone, batch] = [row.alone[step], row.batch[step]];
    const first = step === row.differs ? ".first" : "";
    const cell = (word, kind) => (word || first ? node(`div.token.${kind}${first}`, {},
      word !== undefined && word !== alone ? node("u", {}, word) : word ?? "") : undefined);
    const error = row.errors[step];
    return [cell(alone, alone ? "generated" : "bare"),
      cell(batch, parted || !batch ? "bare" : "generated"),
      error === undefined ? undefined : this.bar(error)];
  }

  bar(error) {
    const made = node("div", { class: `ns-error${error > POWERS ? " ns-nan" : ""}` },
      node("i"), node("small", {}, this.words[`bar_${error}`]));
    made.style.setProperty("--part", Math.min(error, POWERS) / POWERS);
    return made;
  }

  hue(row) {
    return this.look.hues[row % this.look.hues.length];
  }

  marks() {
    const samples = [["generated", "generated"], ["last", "first"], ["bare", "bare"]];
    return legend([...samples.map(([look, key]) =>
      [node(`i.swatch.${look}`, { "aria-hidden": "true" }), this.words[`${key}_mark`]]),
    [node("i.swatch.scale", { "aria-hidden": "true" }), this.words.bar_mark]]);
  }

  /** All of it for who reads rather than looks. */
  table() {
    const { words, scene } = this;
    const columns = [words.column_row, words.token, words.alone, words.batch, words.column_error];
    const heads = columns.map((name) => node("th", { scope: "col" }, name));
    const lines = scene.rows.flatMap((row) => {
      const steps = Math.max(row.alone.length, row.batch.length);
      return Array.from({ length: steps }, (_, step) => [row.name, step + 1,
        row.alone[step] ?? "", row.batch[step] ?? "", words[`class_${row.errors[step]}`] ?? ""]);
    });
    const body = lines.map((line) =>
      node("tr", {}, ...line.map((cell) => node("td", {}, String(cell)))));
    const table = node("table", {}, node("thead", {}, node("tr", {}, ...heads)),
      node("tbody", {}, ...body));
    return node("details.table", {}, control("summary", {}, words.table),
      control("div", { tabindex: "0", role: "group", "aria-label": words.table }, table));
  }

  // --- state ---

  keys() {
    if (document.activeElement.closest("details")) return {}; // the table scrolls
    const { step, row } = this.state;
    const to = (number) => () => this.set({ row: this.within(number, this.scene.rows.length) });
    return { ArrowRight: () => this.go(step + 1), ArrowLeft: () => this.go(step - 1),
      Home: () => this.go(0), End: () => this.go(this.scene.steps - 1),
      ArrowUp: to(row - 1), ArrowDown: to(row + 1), PageDown: () => this.jump(1),
      PageUp: () => this.jump(-1), " ": () => this.playButton().click() };
  }

  playButton() {
    return this.stepper.querySelector('[data-control="play"]');
  }

  within(at, count) {
    return Math.max(0, Math.min(count - 1, at));
  }

  go(step) {
    this.set({ step: this.within(step, this.scene.steps) });
    this.columnAt(this.state.step).scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** To the next token at which a row begins to differ, on that side. */
  jump(side) {
    const found = this.eventBeside(side);
    if (found !== undefined) this.go(found);
  }

  eventBeside(side) {
    const ahead = this.events.filter((step) => (step - this.state.step) * side > 0);
    return ahead[side > 0 ? 0 : ahead.length - 1];
  }

  pick(target) {
    const { step, row } = target.closest("[data-step]")?.dataset ?? {};
    if (step === undefined) return;
    this.set({ step: Number(step), row: Number(row ?? this.state.row) });
  }

  columnAt(step) {
    return this.picture.querySelector(`.ns-column[data-step="${step}"]`);
  }

  // --- drawing ---

  show() {
    const { step, row } = this.state;
    this.stepper.show(step, fill(this.words.now, { number: step + 1, steps: this.scene.steps }));
    for (const [button, side] of [[this.before, -1], [this.after, 1]]) {
      button.disabled = this.eventBeside(side) === undefined;
    }
    setText(this.playhead.firstChild, String(step + 1));
    // both stand in the grid, so that no size needs to be measured
    this.playhead.style.gridColumn = String(step + 2);
    this.veil.style.gridColumn = `${step + 3} / -1`;
    this.veil.hidden = step === this.scene.steps - 1;
    this.options.forEach((option, at) => {
      setText(option, this.rowWords(this.scene.rows[at]));
      option.setAttribute("aria-selected", at === row);
    });
    this.scroller.setAttribute("aria-activedescendant", this.options[row].id);
    for (const part of this.picture.querySelectorAll(".ns-chip")) {
      part.classList.toggle("ns-here", part.textContent === this.scene.rows[row].name);
    }
  }

  // --- in words ---

  sentence() {
    const rows = this.scene.rows.map((row) => this.rowWords(row));
    return fill(this.words.said, { number: this.state.step + 1,
      rows: rows.join(this.words.rows_joined_by) });
  }

  rowWords(row) {
    const { words, state: { step } } = this;
    const [alone, batch] = [row.alone[step], row.batch[step]];
    const parted = row.differs !== null && step >= row.differs;
    const key = parted ? (step === row.differs ? "row_first" : "row_after") : "row_same";
    if (alone === undefined && batch === undefined) return fill(words.row_over, { row: row.name });
    return fill(words[key], { row: row.name, alone: alone ?? words.nothing,
      batch: batch ?? words.nothing, error: words[`class_${row.errors[step]}`] });
  }
}

KINDS["compare-alone"] = CompareAlone;
