// The slot player: one or two traces of real engines, drawn as a score on one clock.
// `mount` puts it into any page; `render` is what anywidget calls in JupyterLab.
// There is no build step: Python joins this file and those it imports.
import { brushFor, drawMark, readTheme } from "./brush.js";
import { fill, node, setIcon, setText } from "./dom.js";
import { drawStrip, layoutFor, stripX } from "./draw.js";
import { eventPasses, firstWorthSeeing, ledger, readTrace, sentence } from "./read.js";
import { timeline } from "./read.js";
import { Panel } from "./panel.js";
import { STATES, makeControls, makeLegend, makeStrip, makeTables } from "./controls.js";

const ZOOMS = [6, 12, 20, 30, 44]; // pixels a column, beside the one in which all fit
const QUIET = 2500; // milliseconds between two sentences while playing
let mounted = 0;

/**
 * Draw `traces` (one or two, as JSON) into `element`.
 *
 * options: traces, look and words (look.for_script and look.WORDS), and, if not the
 * first pass worth seeing, pass (counted from 1); playing; speed; onChange({pass,
 * playing, speed}). Returns { state, set, destroy }.
 */
export function mount(element, options) {
  const player = new Player(options);
  element.append(player.root);
  player.start(options);
  return player;
}

class Player {
  constructor({ traces, look, words, onChange }) {
    Object.assign(this, { look, words, onChange, uid: `ns${(mounted += 1)}` });
    this.traces = traces.map(readTrace);
    this.line = timeline(this.traces);
    this.columns = this.line.clocks.length;
    this.offset = traces.length === 1 ? this.traces[0].first : 0;
    Object.assign(this, { column: 0, playing: false, speed: 1, zoom: undefined });
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.most = mostOf(this.traces.map((trace) => ledger(trace, trace.passes)));
    this.panels = this.traces.map((trace, place) => this.makePanel(trace, place));
    this.root = this.build();
  }

  makePanel(trace, place) {
    const { look, words, uid, most } = this;
    const panel = new Panel(trace, place, { look, words, uid, most,
      onPick: (to) => this.go(to) });
    panel.place(this.line.at[place], this.line.done[place], this.line.clocks);
    panel.numbers = (column) => column + 1 + this.offset;
    panel.jumps = this.jumps();
    return panel;
  }

  /** The columns before which the clock leapt. */
  jumps() {
    const { clocks } = this.line;
    return new Set([...clocks.keys()].filter((column) => {
      return clocks[column] !== (column ? clocks[column - 1] + 1 : this.offset);
    }));
  }

  // --- built once ---

  build() {
    const titles = this.panels.map((panel) => panel.title).join(this.words.versus);
    const name = this.panels.length > 1 ? fill(this.words.below, { title: titles }) : titles;
    this.body = node("div.body", { class: `ns-body ns-of${this.panels.length}` });
    const root = node("div.player", { role: "group",
      "aria-label": fill(this.words.player, { titles: name }),
      "data-lm-suppress-shortcuts": "true" }, this.body);
    if (this.columns) this.body.append(...this.buildParts());
    else this.body.append(this.panels[0].buildTitle(), node("p.empty", {}, this.words.empty));
    return root;
  }

  buildParts() {
    this.said = node("p.sentence", { "aria-hidden": "true" });
    this.live = node("p.live", { role: "status", "aria-live": "polite" });
    const [first, last] = [1 + this.offset, this.columns + this.offset];
    Object.assign(this, makeStrip(this.words, this.panels, first, last),
      makeControls(this.words), makeLegend(this.words), makeTables(this.words, this.panels));
    return [
      node("div.main", {}, ...this.panels.map((panel) => panel.element), this.stripRow,
        this.controlRow, this.said, this.live, this.legend),
      node("div.bills", {}, ...this.panels.map((panel) => panel.bill)), this.table];
  }

  // --- coming and going ---

  start({ pass, playing = false, speed = 1 }) {
    if (!this.columns) return;
    this.column = pass ? this.columnOf(pass) : this.opening();
    this.listen();
    this.observe();
    this.redraw();
    this.set({ speed });
    // nobody who asked for stillness is met by something that moves
    if (playing && !this.still.matches) this.play();
  }

  opening() {
    const found = this.panels.filter(({ trace }) => trace.passes).map((panel) =>
      panel.columnOf[firstWorthSeeing(panel.trace)]);
    return Math.min(...found);
  }

  destroy() {
    this.pause();
    clearTimeout(this.speaking);
    for (const stop of this.stops ?? []) stop();
    this.root.remove();
  }

  listen() {
    const press = { play: () => this.toggle(), back: () => this.go(this.column - 1),
      forward: () => this.go(this.column + 1), zoom_in: () => this.zoomBy(1),
      next_event: () => this.jump(1), previous_event: () => this.jump(-1),
      zoom_out: () => this.zoomBy(-1) };
    for (const [key, act] of Object.entries(press)) {
      this.buttons[key].addEventListener("click", act);
    }
    this.select.addEventListener("change", () => this.set({ speed: Number(this.select.value) }));
    this.range.addEventListener("input", () => this.go(this.range.value - 1 - this.offset));
    this.table.addEventListener("toggle", () => this.fillTables());
    this.root.addEventListener("keydown", (event) => this.press(event));
    this.scrub();
  }

  /** Drag along the strip: the column under the pointer, exactly. */
  scrub() {
    const to = (event) => {
      const x = event.clientX - this.track.getBoundingClientRect().left;
      this.go(Math.floor((x - this.layout.label) / this.layout.fitting));
    };
    this.track.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.range.focus({ preventScroll: true });
      this.track.setPointerCapture(event.pointerId);
      to(event);
    });
    this.track.addEventListener("pointermove", (event) => {
      if (this.track.hasPointerCapture(event.pointerId)) to(event);
    });
  }

  /** Draw anew when the size, the theme or the medium changes. */
  observe() {
    const redraw = () => this.redraw();
    const sizes = new ResizeObserver(redraw);
    sizes.observe(this.panels[0].score);
    const themes = new MutationObserver(redraw);
    const attributes = { attributes: true,
      attributeFilter: ["class", "style", "data-theme", "data-jp-theme-name"] };
    themes.observe(document.body, attributes);
    themes.observe(document.documentElement, attributes);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const print = window.matchMedia("print");
    const printing = () => this.print(print.matches);
    dark.addEventListener("change", redraw);
    print.addEventListener("change", printing);
    this.stops = [() => sizes.disconnect(), () => themes.disconnect(),
      () => dark.removeEventListener("change", redraw),
      () => print.removeEventListener("change", printing)];
  }

  /** Paper shows the whole score and the whole bill. */
  print(begins) {
    if (begins) this.before = [this.column, this.zoom];
    else if (!this.before) return;
    this.pause();
    [this.column, this.zoom] = begins ? [this.columns - 1, null] : this.before;
    this.printing = begins;
    this.redraw();
  }

  // --- keys ---

  press(event) {
    const { key, target, ctrlKey, altKey, metaKey } = event;
    if (ctrlKey || altKey || metaKey || target === this.select) return;
    const onButton = ["BUTTON", "SUMMARY"].includes(target.tagName);
    if (key === " " && onButton) return; // the button's own
    if (target === this.tablesBox && this.scrollsSideways(key)) return;
    const act = this.keys()[key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** Tables wider than their place are scrolled by the arrows, as anywhere. */
  scrollsSideways(key) {
    const { scrollWidth, clientWidth } = this.tablesBox;
    return scrollWidth > clientWidth && ["ArrowLeft", "ArrowRight"].includes(key);
  }

  keys() {
    const by = (step) => () => this.go(this.column + step);
    return { " ": () => this.toggle(), ArrowLeft: by(-1), ArrowRight: by(1),
      ArrowDown: by(-1), ArrowUp: by(1), Home: () => this.go(0),
      End: () => this.go(this.columns - 1), PageUp: () => this.jump(-1),
      PageDown: () => this.jump(1), "+": () => this.zoomBy(1), "-": () => this.zoomBy(-1) };
  }

  // --- state ---

  get state() {
    return { pass: this.column + 1 + this.offset, playing: this.playing, speed: this.speed };
  }

  columnOf(pass) {
    return Math.min(this.columns - 1, Math.max(0, pass - 1 - this.offset));
  }

  /** Change from outside; what is not named stays. */
  set({ pass, playing, speed }) {
    if (!this.columns) return;
    if (speed !== undefined) {
      this.speed = speed;
      this.select.value = String(speed);
      this.select.title = fill(this.words.rate, { rate: this.rate() });
    }
    if (pass !== undefined && pass !== this.state.pass) this.go(this.columnOf(pass));
    if (playing !== undefined && playing !== this.playing) this.toggle();
    this.onChange?.(this.state);
  }

  go(column) {
    const to = Math.min(this.columns - 1, Math.max(0, Math.floor(column)));
    if (to === this.column) return;
    this.column = to;
    this.show();
    this.onChange?.(this.state);
  }

  /** To the nearest event on that side; past the last one, to the end. */
  jump(side) {
    this.events ??= this.findEvents();
    const ahead = this.events.filter((column) => (column - this.column) * side > 0);
    const last = side > 0 ? this.columns - 1 : 0;
    this.go(ahead.length ? ahead[side > 0 ? 0 : ahead.length - 1] : last);
  }

  findEvents() {
    const found = new Set();
    for (const panel of this.panels) {
      for (const pass of eventPasses(panel.trace)) found.add(panel.columnOf[pass]);
    }
    return [...found].filter((column) => column >= 0).sort((one, other) => one - other);
  }

  // --- playing ---

  /** Passes a second: a long trace is over in about a minute at 1×. */
  rate() {
    return Math.max(2, Math.round(this.columns / 40)) * this.speed;
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.column === this.columns - 1) this.go(0);
    this.playing = true;
    this.showPlaying();
    let [last, part] = [performance.now(), 0];
    const frame = (time) => {
      part += (Math.max(0, time - last) / 1000) * this.rate();
      last = time;
      const whole = Math.floor(part);
      part -= whole;
      if (whole) this.go(this.column + whole);
      if (this.column === this.columns - 1) this.pause();
      else this.frame = requestAnimationFrame(frame);
    };
    this.frame = requestAnimationFrame(frame);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this.frame);
    this.showPlaying();
    this.speak();
  }

  showPlaying() {
    const key = this.playing ? "pause" : "play";
    setIcon(this.buttons.play, key, this.words[key]);
    this.onChange?.(this.state);
  }

  // --- drawing ---

  redraw() {
    const width = this.panels[0].score.clientWidth;
    if (!width || !this.columns) return; // not yet in sight
    this.theme = { ...readTheme(this.body), density: this.printing ? 3 : 1 };
    const slots = Math.max(...this.traces.map((trace) => trace.slots));
    const fits = layoutFor(width, this.columns, slots, 1, this.theme.scale);
    this.zoom ??= fits.fitting >= 1 ? null : ZOOMS[0];
    this.layout = layoutFor(width, this.columns, slots,
      this.printing ? null : this.zoom, this.theme.scale);
    this.turnPage();
    this.drawAll();
    this.show();
  }

  drawAll() {
    for (const panel of this.panels) panel.draw(this.layout, this.theme);
    const height = this.strip.clientHeight;
    this.stripBrush = brushFor(this.strip, this.layout.width, height, this.theme, this.look.hues);
    this.strip.style.height = "";
    drawStrip(this.stripBrush, this.layout, this.panels);
    this.samples.forEach((canvas, place) =>
      drawMark(canvas, STATES[place], this.theme, this.look.hues));
    this.showWindow();
    this.buttons.zoom_out.disabled = this.layout.column <= this.layout.fitting;
    this.buttons.zoom_in.disabled = !this.larger();
  }

  /** Which part of the strip the score shows, if not all. */
  showWindow() {
    const { layout } = this;
    const left = stripX(layout, layout.first);
    this.window.hidden = layout.visible === layout.columns;
    this.window.style.transform = `translateX(${left}px)`;
    this.window.style.width = `${layout.visible * layout.fitting}px`;
  }

  /** As with a score: when the playhead leaves the page, turn it. True if it did. */
  turnPage() {
    const { first, visible } = this.layout;
    if (this.column >= first && this.column < first + visible) return false;
    const before = Math.floor(visible * (this.column < first ? 0.85 : 0.15));
    const last = this.columns - visible;
    this.layout.first = Math.max(0, Math.min(last, this.column - before));
    return true;
  }

  larger() {
    return ZOOMS.find((zoom) => zoom > this.layout.column * 1.15);
  }

  zoomBy(side) {
    const smaller = ZOOMS.findLast((zoom) => zoom < this.layout.column * 0.99);
    const fits = !smaller || smaller <= this.layout.fitting * 1.15;
    this.zoom = side > 0 ? this.larger() ?? this.zoom : fits ? null : smaller;
    this.redraw();
  }

  show() {
    if (!this.layout) return;
    if (this.turnPage()) {
      for (const panel of this.panels) panel.drawPage();
      this.showWindow();
    }
    for (const panel of this.panels) panel.show(this.column);
    const x = stripX(this.layout, this.column + 0.5);
    this.thumb.style.transform = `translateX(${x}px)`;
    this.showWords();
    this.speak();
  }

  showWords() {
    const { pass: number } = this.state;
    const passes = this.columns + this.offset;
    const leapt = this.panels[0].jumps.size ? this.line.clocks[this.column] + 1 : 0;
    const now = fill(this.words.now, { number, passes });
    setText(this.now, leapt ? `${now} · ${fill(this.words.clock, { clock: leapt })}` : now);
    const shares = this.panels.map((panel) => this.shareOf(panel));
    setText(this.shares, shares.join("\n"));
    this.range.value = number;
    this.range.setAttribute("aria-valuetext", fill(this.words.scrubbed, { number, passes,
      shares: `${this.words.useful_share} ${shares.join(", ")}` }));
    setText(this.said, this.sentence());
    if (this.table.open) this.fillTables();
  }

  shareOf({ at, useful, trace }) {
    const pass = at[this.column];
    return fill(this.words.share, { useful: pass < 0 ? 0 : useful[pass], slots: trace.slots });
  }

  sentence() {
    const { words } = this;
    return this.panels.map((panel) => {
      const pass = panel.at[this.column];
      const over = this.column > panel.columnOf[panel.trace.passes - 1];
      const said = pass >= 0 ? sentence(panel.trace, pass, words, this.look.mostTold)
        : over ? fill(words.done, { passes: panel.trace.passes }) : words.no_pass;
      return this.panels.length > 1 ? fill(words.of_engine, { engine: panel.name, said }) : said;
    }).join("\n");
  }

  /** Tell a screen reader: soon after a step, and now and then while playing. */
  speak() {
    if (this.speaking && this.playing) return;
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      this.speaking = undefined;
      setText(this.live, this.sentence());
      for (const panel of this.panels) panel.nameSlots();
    }, this.playing ? QUIET : 120);
  }

  fillTables() {
    for (const { body, rows } of this.tables) {
      body.replaceChildren(...rows(this.column).map((cells) =>
        node("tr", {}, ...cells.map((cell) => node("td", {}, String(cell))))));
    }
  }
}

/** The larger of each sum: two bills are drawn to one scale. */
function mostOf(bills) {
  return Object.fromEntries(Object.keys(bills[0]).map((key) =>
    [key, Math.max(...bills.map((bill) => bill[key]))]));
}

/** What anywidget calls: the same player, its state shared with Python. */
function render({ model, el }) {
  const data = model.get("_data");
  const player = mount(el, { ...data, pass: model.get("pass_"),
    playing: model.get("playing"), speed: model.get("speed"),
    onChange: (state) => share(model, state) });
  const take = () => player.set({ pass: model.get("pass_"), playing: model.get("playing"),
    speed: model.get("speed") });
  model.on("change:pass_ change:playing change:speed", take);
  return () => {
    model.off("change:pass_ change:playing change:speed", take);
    player.destroy();
  };
}

/** Tell Python, but not sixty times a second. */
function share(model, state) {
  model.set("pass_", state.pass);
  model.set("playing", state.playing);
  model.set("speed", state.speed);
  model.nanoserveSaving ??= setTimeout(() => {
    model.nanoserveSaving = undefined;
    model.save_changes();
  }, 100);
}

export default { render };
