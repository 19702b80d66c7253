// The memory calculator: a card's memory, the weights in it, and the sequences whose K
// and V fit beside them. Its choices need no kernel: the scene holds the bytes of each,
// and `sums` and `told` say what those of memory_scene.py and memory_calculator.py say.
import { Instrument, KINDS, choices, legend } from "./instrument.js";
import { control, fill, node, setText } from "./dom.js";

const MOST_DRAWN = 64; // sequences, one by one; more are one piece
const CLASSES = { weights: "bar", sequences: "prompt", rest: "bare", others: "generated",
  beyond: "generated" };
const { format: number } = new Intl.NumberFormat("en-US");

class MemoryCalculator extends Instrument {
  build() {
    const { scene, words } = this;
    this.root.classList.add("ns-memory");
    this.bar = node("div.card", { "aria-hidden": "true" });
    this.partList = node("div");
    this.sums = node("dl.sums");
    this.notes = node("div.more");
    this.fields = {
      model: this.selection("model", scene.models.map(({ name }) => [name, name])),
      weights: this.formats("weights"),
      kv: this.formats("kv"),
      context: this.slider("context", () => this.model.contexts, number),
      card: this.selection("card", scene.cards.map((card) => [card.gb, fill(words.card_of, card)])),
      share: this.slider("share", () => Object.keys(scene.cards[0].used).map(Number),
        (share) => `${share / 100}`),
    };
    return [node("div.fields", {}, ...Object.values(this.fields)),
      this.bar, this.partList, this.sums, this.notes];
  }

  // --- controls ---

  selection(key, options) {
    const select = control("select", {}, ...options.map(([value, words]) =>
      node("option", { value }, words)));
    const values = options.map(([value]) => value);
    select.addEventListener("change", () => this.set({ [key]: values[select.selectedIndex] }));
    const field = node("label.field", {}, node("span.label", {}, this.words[key]), select);
    field.pick = (value) => { select.selectedIndex = values.indexOf(value); };
    return field;
  }

  formats(key) {
    const sizes = this.scene.formats[key]; // the largest first, however they are stored
    const names = Object.keys(sizes).sort((one, other) => sizes[other] - sizes[one]);
    return choices(this.words[key], names.map((name) => [name, name]),
      (value) => this.set({ [key]: value }));
  }

  /** A slider over `values()`, which may change with the model. */
  slider(key, values, say) {
    const input = control("input", { type: "range", min: 0, step: 1 });
    const now = node("b", { "aria-hidden": "true" });
    input.addEventListener("input", () => this.set({ [key]: values()[Number(input.value)] }));
    const field = node("label.field", {}, node("span.label", {}, this.words[key]),
      node("span.slide", {}, input, now));
    field.pick = (value) => {
      input.max = values().length - 1;
      input.value = values().indexOf(value);
      input.setAttribute("aria-valuetext", say(value));
      setText(now, say(value));
    };
    return field;
  }

  // --- state ---

  get model() {
    return this.scene.models.find(({ name }) => name === this.state.model);
  }

  get card() {
    return this.scene.cards.find(({ gb }) => gb === this.state.card);
  }

  /** A model allows no more than it was made for. */
  set(changes) {
    Object.assign(this.state, changes);
    const most = this.model.contexts.at(-1);
    super.set({ context: Math.min(this.state.context, most) });
  }

  /** What `memory_scene.sums` says: bytes, and whole sequences. */
  counted() {
    const { state, model, card } = this;
    const [weights, token] = [model.weights[state.weights], model.token[state.kv]];
    const [used, gib] = [card.used[state.share], card.gib[state.share]];
    const sequence = token * state.context;
    const left = used - weights;
    const [fit, gibFit] = [left, gib - weights].map((room) =>
      Math.max(0, Math.floor(room / sequence)));
    return { weights, token, sequence, used, left, fit, rest: left - fit * sequence, gib, gibFit };
  }

  // --- drawing ---

  show() {
    const { sums, parts, notes } = this.told();
    for (const [key, field] of Object.entries(this.fields)) field.pick(this.state[key]);
    this.root.setAttribute("aria-label", `${this.words.name}: ${this.title()}`);
    this.drawBar(parts);
    this.partList.replaceChildren(legend(parts.map(([kind, , said]) =>
      [this.part(kind, "i.swatch"), said])));
    this.sums.replaceChildren(...sums.map(([what, said]) =>
      node("div", {}, node("dt", {}, what), node("dd", {}, said))));
    this.notes.replaceChildren(...notes.map((note) => node("p", {}, note)));
  }

  drawBar(parts) {
    const { fit } = this.counted();
    this.bar.replaceChildren(...parts.map(([kind, bytes]) => {
      const pieces = kind === "sequences" && fit <= MOST_DRAWN ? fit : 1;
      const run = node("div", {}, ...Array.from({ length: pieces }, () => this.part(kind, "i")));
      run.style.flexGrow = bytes / this.card.gb / 1e9;
      return run;
    }));
  }

  part(kind, tag) {
    const made = node(`${tag}.${CLASSES[kind]}`, { "aria-hidden": "true", "data-part": kind });
    const hue = { sequences: 0, beyond: 5 }[kind];
    if (hue !== undefined) made.style.setProperty("--hue", this.look.hues[hue]);
    return made;
  }

  // --- in words ---

  sentence() {
    return this.told().sentence;
  }

  title() {
    return fill(this.words.title, { ...this.state, context: number(this.state.context) });
  }

  gb(bytes) {
    const [words, unit] = bytes >= 1e9 ? [this.words.gb, 1e9] : [this.words.mb, 1e6];
    return fill(words, { count: (bytes / unit).toPrecision(3) });
  }

  bytes(count) {
    return count === 1 ? this.words.one_byte : fill(this.words.bytes, { count });
  }

  fit(count) {
    return count ? number(count) : this.words.none;
  }

  /** What `told` in memory_calculator.py says. */
  told() {
    const { words } = this;
    const counts = this.counted();
    const values = this.values(counts);
    const few = ["fits_none", "fits_one"][counts.fit] ?? "fits";
    return {
      sentence: fill(words[counts.left < 0 ? "too_large" : few], values),
      sums: this.lines(counts, values),
      parts: this.parts(counts),
      notes: [fill(words.gib_note, values), words.not_counted],
    };
  }

  values(counts) {
    const { model, state } = this;
    return { ...model, ...state, context: number(state.context),
      parameters: number(model.parameters), token: number(counts.token),
      sequence_bytes: number(counts.sequence), weights_bytes: number(counts.weights),
      left_bytes: number(counts.left), fit: this.fit(counts.fit), gib_fit: this.fit(counts.gibFit),
      sequence: this.gb(counts.sequence), weights_gb: this.gb(counts.weights),
      used: this.gb(counts.used), left: this.gb(counts.left), gib_used: this.gb(counts.gib) };
  }

  lines(counts, values) {
    const { words, scene, state } = this;
    const { weights, kv } = scene.formats;
    const sum = (line, more) => [words[`${line}_is`], fill(words[`${line}_sum`], { ...values, ...more })];
    const left = counts.left < 0 ? [[words.left_is, fill(words.left_nothing, values)]]
      : [sum("left"), sum("fit")];
    return [sum("token", { bytes: this.bytes(kv[state.kv]) }), sum("sequence"),
      sum("weights", { bytes: this.bytes(weights[state.weights]) }), ...left];
  }

  /** What the bar is made of, from its left: [kind, bytes, words]. */
  parts({ weights, used, left, fit, sequence, rest }) {
    const others = this.card.gb * 1e9 - used;
    const parts = left < 0 ? { weights: used, beyond: -left }
      : { weights, sequences: fit * sequence, rest, others };
    return Object.entries(parts).filter(([, bytes]) => bytes).map(([kind, bytes]) => {
      const key = kind === "sequences" && fit === 1 ? "part_sequence" : `part_${kind}`;
      const gb = this.gb(kind === "weights" ? weights : bytes);
      return [kind, bytes, fill(this.words[key], { gb, fit: this.fit(fit) })];
    });
  }
}

KINDS["memory-calculator"] = MemoryCalculator;
