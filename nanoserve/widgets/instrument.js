// What all instruments share. An instrument is a class in a file of its own that adds
// itself to KINDS; it draws a *scene*, which Python computed from a real run, and
// counts nothing anew. A subclass has
//
//   build()     the elements below the prompts, made once for each scene
//   show()      draw `this.state`, over and over
//   sentence()  the state in words; they are written below and spoken
//   keys        (if any) { ArrowRight: () => this.set(..), .. } while it has the focus
//
// and calls `this.set({ .. })` to change the state. `this.scene`, `this.words` and
// `this.look` are what Python sent; `this.live` is true beside a running kernel.
import { control, fill, iconButton, node, setIcon, setText } from "./dom.js";
import { sample } from "./grid.js";

export const KINDS = {};
let instruments = 0;

/** Put an instrument into a page: `data` is instrument.page_data's. */
export function mount(element, data) {
  const made = new KINDS[data.scene.instrument](data);
  element.append(made.root);
  return made;
}

export class Instrument {
  constructor({ scene, words, look, live = false, onAsk = () => {} }) {
    Object.assign(this, { words, look, live, onAsk, uid: `ni${(instruments += 1)}` });
    this.said = node("p.sentence", { "aria-hidden": "true" });
    this.spoken = node("p.live", { role: "status", "aria-live": "polite" });
    this.content = node("div.content");
    this.body = node("div.body", {}, ...this.buildPrompts(scene), this.content,
      this.said, this.spoken);
    this.root = node("div.player.instrument", { role: "group",
      "data-lm-suppress-shortcuts": "true" }, this.body);
    this.root.addEventListener("keydown", (event) => this.press(event));
    this.draw(scene);
    // pictures take their size from the room there is
    this.sizes = new ResizeObserver(() => {
      if (this.root.clientWidth === this.wide) return;
      this.wide = this.root.clientWidth;
      this.show();
    });
    this.sizes.observe(this.root);
  }

  // --- for the subclass ---

  /** Take over `changes` and show them. */
  set(changes) {
    Object.assign(this.state, changes);
    this.refresh();
  }

  /** Let Python compute another scene: settings by their names. Only if live. */
  ask(settings) {
    this.onAsk(settings);
  }

  say(key, values = {}) {
    return fill(this.words[key], values);
  }

  // --- inner workings ---

  /** A new scene: what stands in it is made anew, the state kept as far as it fits. */
  draw(scene) {
    this.scene = scene;
    this.state = { ...scene.opens, ...this.kept?.() };
    this.root.setAttribute("aria-label", `${this.words.name}: ${scene.title}`);
    this.content.replaceChildren(...this.build());
    this.refresh();
  }

  refresh() {
    this.show();
    setText(this.said, this.sentence());
    clearTimeout(this.speaking);
    // after the last of several quick steps, not at each
    this.speaking = setTimeout(() => setText(this.spoken, this.sentence()), 120);
  }

  press(event) {
    const { key, target, ctrlKey, altKey, metaKey } = event;
    if (ctrlKey || altKey || metaKey) return;
    if (target.matches("textarea, select, summary, input")) return; // their own keys
    if ((key === " " || key === "Enter") && target.matches("button")) return;
    const act = this.keys?.()[key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** A field to type prompts into, one a line; off where no Python can read them. */
  buildPrompts(scene) {
    if (!this.words.prompts) return [];
    this.field = control("textarea", { rows: Math.max(2, scene.prompts.length),
      spellcheck: "false", "aria-label": this.words.prompts });
    this.field.value = scene.prompts.join("\n");
    this.field.disabled = !this.live;
    this.problem = node("p.problem", { role: "alert" });
    // a notebook that hears of Enter takes the new line away
    this.field.addEventListener("keydown", (event) => event.stopPropagation());
    let wait;
    this.field.addEventListener("input", () => {
      this.field.rows = Math.max(2, this.field.value.split("\n").length);
      clearTimeout(wait);
      wait = setTimeout(() => this.ask({ prompts: this.field.value }), 400);
    });
    const hint = this.live ? [] : [node("p.more", {}, this.words.no_kernel)];
    return [node("div.prompts", {}, node("p.label", {}, this.words.prompts),
      this.field, ...hint, this.problem)];
  }

  /** Python refused what was typed, and says why in one line; or "". */
  complain(problem) {
    if (this.problem) setText(this.problem, problem);
  }

  destroy() {
    clearTimeout(this.speaking);
    this.sizes.disconnect();
    this.root.remove();
  }
}

// --- controls ---

/** Buttons of which one is on: `options` are [value, words]. `pick(value)` moves it. */
export function choices(label, options, onPick) {
  const name = `nc${(instruments += 1)}`;
  const inputs = options.map(([value, words]) => {
    const input = control("input", { type: "radio", name, value });
    input.addEventListener("change", () => onPick(value));
    return [value, input, node("label", {}, input, node("span", {}, words))];
  });
  const element = node("fieldset.choices", {}, node("legend", {}, label),
    node("div", {}, ...inputs.map(([, , each]) => each)));
  element.pick = (picked) => {
    for (const [value, input] of inputs) input.checked = value === picked;
  };
  return element;
}

/** One thing that is on or off. */
export function toggle(label, onChange) {
  const input = control("input", { type: "checkbox" });
  input.addEventListener("change", () => onChange(input.checked));
  const element = node("label.toggle", {}, input, node("span", {}, label));
  element.pick = (on) => { input.checked = on; };
  return element;
}

/**
 * A row of buttons and a slider over `count` steps, from 0. `go(step)` is told where
 * to; `show(step, now)` moves it and writes `now` beside it. `play` walks on to the end.
 */
export function stepper(words, count, go, every = 900) {
  let [at, timer] = [0, 0];
  const buttons = Object.fromEntries(["back", "play", "forward"].map((key) =>
    [key, iconButton(key, words[key])]));
  const range = control("input", { type: "range", min: 0, max: count - 1, step: 1,
    "aria-label": words.steps });
  const now = node("p.now");
  const to = (step) => {
    const next = Math.min(count - 1, Math.max(0, step));
    if (next !== at) go(next);
  };
  const playing = (on) => {
    clearInterval(timer);
    timer = on ? setInterval(() => (at < count - 1 ? to(at + 1) : playing(false)), every) : 0;
    setIcon(buttons.play, on ? "pause" : "play", words[on ? "pause" : "play"]);
    buttons.play.dataset.control = "play";
  };
  buttons.back.addEventListener("click", () => to(at - 1));
  buttons.forward.addEventListener("click", () => to(at + 1));
  buttons.play.addEventListener("click", () => {
    if (timer) return playing(false);
    if (at === count - 1) to(0);
    return playing(true);
  });
  range.addEventListener("input", () => to(Number(range.value)));
  const element = node("div.controls.stepper", {}, ...Object.values(buttons), range, now);
  element.to = (by) => to(at + by);
  element.show = (step, said) => {
    at = step;
    range.value = step;
    range.setAttribute("aria-valuetext", said);
    setText(now, said);
    buttons.back.disabled = step === 0;
    buttons.forward.disabled = step === count - 1;
    if (!element.isConnected && timer) playing(false);
  };
  return element;
}

/** Words beside small samples: `items` are [an element or "", words]. */
export function legend(items) {
  return node("ul.legend", {}, ...items.map(([sample, words]) =>
    node("li", {}, sample, words)));
}

/** What each code of `lines` stands for: only what is met in one of them or `always`. */
export function codeLegend({ scene, words, look }, always = "") {
  const { codes, lines, rows, opens } = scene;
  const met = (code) => always.includes(code) || lines.some((line) => line.includes(code));
  const marks = new Set(Object.keys(codes).filter(met).map((code) => codes[code]));
  // in the order of the words: a notebook sorts the keys of what it stores
  return legend(Object.keys(words).filter((word) => marks.has(word)).map((mark) =>
    [sample(look, mark, rows[opens.row].hue), words[mark]]));
}

// --- beside a kernel ---

/** What anywidget calls. */
function render({ model, el }) {
  const data = Object.fromEntries(["scene", "words", "look"].map((name) =>
    [name, model.get(`_${name}`)]));
  const ask = (settings) => {
    model.set("_asked", { ...settings, nth: Date.now() });
    model.save_changes();
  };
  const made = mount(el, { ...data, live: true, onAsk: ask });
  const redraw = () => made.draw(model.get("_scene"));
  const complain = () => made.complain(model.get("_problem"));
  model.on("change:_scene", redraw);
  model.on("change:_problem", complain);
  return () => {
    model.off("change:_scene", redraw);
    model.off("change:_problem", complain);
    made.destroy();
  };
}

export default { render };
