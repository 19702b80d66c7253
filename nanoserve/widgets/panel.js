// One trace: its queue, score, KV bars and bill. The canvas is for eyes; whatever it
// shows also stands in the page as text (slots as options, the bill as a list).
import { brushFor, drawMark } from "./brush.js";
import { control, fill, node, setText } from "./dom.js";
import { drawKv, drawScore, drawSeats, scoreHeight, xOf, yOf } from "./draw.js";
import { cellAt, cellWords, kvAt, ledger, seatShares, slotWords } from "./read.js";
import { toCome, tokenAt, usefulSlots, waiting } from "./read.js";

const LEADING = ["passes", "empty_seats"]; // they lead every bill
const GROUPS = {
  group_seats: ["useful_slot_steps", "wasted_slot_steps", "idle_slot_steps"],
  group_tokens: ["generated_tokens", "prompt_tokens", "pad_tokens"],
  group_kv: ["kv_live_token_steps", "kv_finished_token_steps", "kv_free_token_steps"],
};
// a figure's mark: what it counts is drawn so in the score, the seats and the KV bars
const MARKS = { useful_slot_steps: "prefill", wasted_slot_steps: "finished",
  idle_slot_steps: "idle", pad_tokens: "pad", kv_live_token_steps: "prefill",
  kv_finished_token_steps: "finished", kv_free_token_steps: "free" };
const MOST_ROWS = 64;

const digits = new Intl.NumberFormat("en-US");
const percent = new Intl.NumberFormat("en-US", { style: "percent",
  minimumFractionDigits: 1, maximumFractionDigits: 1, roundingMode: "halfEven" });

export class Panel {
  constructor(trace, place, { look, words, uid, most, onPick }) {
    Object.assign(this, { trace, look, words, most, onPick, id: `${uid}-${place}`, slot: 0 });
    this.useful = usefulSlots(trace);
    this.name = words[`engine_${trace.engine}`] ?? trace.engine;
    this.title = fill(words.title, { engine: this.name, slots: trace.slots,
      passes: digits.format(trace.passes) });
    this.element = node("div.panel", {}, this.buildTitle(), this.buildQueue(),
      this.buildScore(), this.buildKv());
    this.bill = this.buildBill();
  }

  /** Its place among the columns of all traces of this player. */
  place(at, done, clocks) {
    Object.assign(this, { at, done, clocks });
    this.columnOf = new Int32Array(this.trace.passes);
    at.forEach((pass, column) => { if (pass >= 0) this.columnOf[pass] = column; });
  }

  // --- built once ---

  buildTitle() {
    const values = { slots: this.trace.slots, passes: digits.format(this.trace.passes),
      requests: digits.format(this.trace.requests.size) };
    return node("p.title", {}, node("b", {}, this.name), " ",
      node("span", {}, fill(this.words.size, values)));
  }

  buildQueue() {
    this.waitingCount = node("b");
    this.queue = node("ol", { "aria-label": `${this.words.waiting}: ${this.name}` });
    this.more = node("p.more");
    return node("div.queue", {}, node("p.label", {}, this.words.waiting, " ",
      this.waitingCount), this.queue, this.more);
  }

  buildScore() {
    this.canvas = node("canvas", { "aria-hidden": "true" });
    this.veil = node("div.veil");
    this.head = node("div.playhead", {}, node("b"));
    this.tip = node("div.tip", { role: "tooltip", id: `${this.id}-tip`, hidden: "" });
    this.options = Array.from({ length: this.trace.slots }, (_, slot) =>
      node("div", { role: "option", id: `${this.id}-slot${slot}` }));
    const name = fill(this.words.cells, { title: this.title });
    this.cells = control("div.cells", { role: "listbox", tabindex: "0",
      "aria-label": name, "aria-describedby": `${this.id}-tip` }, ...this.options);
    this.listen();
    this.score = node("div.score", {}, this.canvas, this.veil, this.head,
      this.cells, this.tip);
    return this.score;
  }

  buildKv() {
    this.kv = node("canvas", { "aria-hidden": "true" });
    const words = fill(this.words.kv, { capacity: digits.format(this.trace.capacity) });
    return node("div.kv", {}, node("p.label", {}, words), this.kv);
  }

  buildBill() {
    Object.assign(this, { figures: {}, marks: [] });
    this.seats = node("canvas.seats", { "aria-hidden": "true" });
    const name = fill(this.words.bill, { engine: this.name });
    const leads = node("dl.leads", {}, ...LEADING.map((key) => this.buildFigure(key)));
    this.seatsSoFar = node("small");
    leads.lastChild.firstChild.append(" ", this.seatsSoFar);
    leads.lastChild.style.minWidth = `${14 + digits.format(this.most.seats).length}ch`;
    const groups = Object.entries(GROUPS).map(([group, keys]) =>
      node("dl.group", { "aria-label": this.words[group] },
        node("p", { "aria-hidden": "true" }, this.words[group]),
        ...keys.map((key) => this.buildFigure(key))));
    return node("div.bill", { role: "group", "aria-label": name },
      node("p.label", {}, name), leads, this.seats, node("div.groups", {}, ...groups));
  }

  buildFigure(key) {
    const dd = node("dd", { "data-bill": key }, node("small"), node("b"));
    const dt = node("dt", {}, this.words[key]);
    this.figures[key] = dd;
    if (MARKS[key]) dt.prepend(this.buildMark(MARKS[key]));
    // room for the last sum from the start, so that nothing moves while it grows
    dd.lastChild.style.minWidth = `${digits.format(this.most[key]).length}ch`;
    return node("div", {}, dt, dd);
  }

  buildMark(state) {
    const mark = node("canvas.mark", { "aria-hidden": "true" });
    this.marks.push([mark, state]);
    return mark;
  }

  // --- the cell under pointer or focus ---

  listen() {
    const { cells } = this;
    cells.addEventListener("pointermove", (event) => this.pointAt(event));
    cells.addEventListener("pointerleave", () => this.restTip());
    cells.addEventListener("click", (event) => this.pick(event));
    cells.addEventListener("focus", () => this.restTip());
    cells.addEventListener("blur", () => this.hideTip());
    cells.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") this.hideTip();
    else if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) return;
    this.slot = Math.min(this.trace.slots - 1, Math.max(0, this.slot + step));
    this.restTip();
  }

  cellUnder(event) {
    const box = this.cells.getBoundingClientRect();
    const { layout } = this;
    const column = layout.first
      + Math.floor((event.clientX - box.left - layout.label) / layout.column);
    const slot = Math.floor((event.clientY - box.top - layout.axis) / layout.row);
    const inside = column >= layout.first && column < layout.first + layout.visible;
    return inside && slot >= 0 && slot < this.trace.slots ? [slot, column] : [];
  }

  pointAt(event) {
    const [slot, column] = this.cellUnder(event);
    if (slot === undefined) this.restTip();
    else this.showTip(slot, column);
  }

  pick(event) {
    const [slot, column] = this.cellUnder(event);
    if (slot === undefined) return;
    this.slot = slot;
    this.onPick(column);
  }

  /** With the pointer away, the tooltip stays with the focused slot. */
  restTip() {
    const focused = this.cells === this.cells.getRootNode().activeElement;
    if (focused && this.layout) this.showTip(this.slot, this.column);
    else this.hideTip();
  }

  showTip(slot, column) {
    const { layout, tip, trace } = this;
    const pass = this.at[column];
    const lines = pass < 0 ? [this.words.no_pass] : cellWords(trace, slot, pass, this.words);
    tip.replaceChildren(...lines.map((line) => node("span", {}, line)));
    tip.hidden = false;
    const room = layout.width - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(xOf(layout, column), room))}px`;
    tip.style.top = `${yOf(layout, slot) + layout.row + 2}px`;
    if (column === this.column) this.activate(slot);
  }

  activate(slot) {
    this.cells.setAttribute("aria-activedescendant", this.options[slot].id);
    this.options.forEach((option, place) => {
      option.setAttribute("aria-selected", String(place === slot));
    });
    this.nameSlots();
  }

  hideTip() {
    this.tip.hidden = true;
  }

  // --- drawn anew when the size, the theme or the view changes ---

  draw(layout, theme) {
    this.layout = layout;
    const { hues } = this.look;
    const height = scoreHeight(layout, this.trace.slots);
    this.brush = brushFor(this.canvas, layout.width, height, theme, hues);
    this.drawPage();
    this.kvBrush = brushFor(this.kv, this.kv.clientWidth, height, theme, hues);
    const bar = this.seats.clientHeight;
    this.seatsBrush = brushFor(this.seats, this.seats.clientWidth, bar, theme, hues);
    this.seats.style.height = "";
    for (const [mark, state] of this.marks) drawMark(mark, state, theme, hues);
    this.score.style.height = `${height}px`;
    this.placed = Math.max(2, Math.floor((height - 40 * theme.scale) / (36 * theme.scale)));
  }

  /** The columns in view, which may have changed. */
  drawPage() {
    drawScore(this.brush, this.layout, this, this.words);
  }

  // --- at each step ---

  show(column) {
    this.column = column;
    const [pass, done] = [this.at[column], this.done[column]];
    this.showHead(column);
    this.showQueue(pass < 0 ? done : pass, this.clocks[column]);
    this.showBill(done);
    drawKv(this.kvBrush, this.layout, this, pass);
    this.restTip();
  }

  showHead(column) {
    const { layout } = this;
    const x = xOf(layout, column);
    const wide = Math.max(2, layout.column);
    const right = xOf(layout, layout.first + layout.visible);
    this.head.classList.toggle("ns-thin", layout.column < 9);
    Object.assign(this.head.style, { transform: `translateX(${x}px)`, width: `${wide}px` });
    Object.assign(this.veil.style, { left: `${x + wide}px`, top: `${layout.axis}px`,
      width: `${Math.max(0, right - x - wide)}px` });
    setText(this.head.firstChild, String(this.numbers(column)));
  }

  showQueue(done, clock) {
    const queue = waiting(this.trace, done, clock);
    const shown = queue.slice(0, this.placed);
    setText(this.waitingCount, digits.format(queue.length));
    const key = `${shown.map(([request]) => request.index)} ${shown.map(([, since]) => since)}`;
    if (key !== this.queued) {
      this.queue.replaceChildren(...shown.map(([one, since]) => this.queueEntry(one, since)));
    }
    this.queued = key;
    setText(this.more, this.queueRest(queue.length - shown.length, clock));
  }

  queueEntry(request, since) {
    const hue = this.look.hues[request.index % this.look.hues.length];
    const asks = { prompt: request.prompt_tokens, limit: request.max_tokens };
    return node("li", { style: `--hue: ${hue}` },
      node("b", { title: request.request_id }, request.request_id),
      node("span", {}, fill(this.words.asks, asks)),
      node("small", {}, this.when("since", since)));
  }

  queueRest(hidden, clock) {
    if (hidden) return fill(this.words.more, { count: digits.format(hidden) });
    const { count, next } = toCome(this.trace, clock);
    if (!count) return this.queue.childElementCount ? "" : this.words.nobody;
    return fill(this.words.to_come, { count, when: this.when("at", next) });
  }

  /** Where the clock leaps, it is no longer the number of a pass. */
  when(key, clock) {
    const template = this.words[this.jumps.size ? `${key}_clock` : `${key}_pass`];
    return fill(template, { clock: digits.format(clock + 1) });
  }

  showBill(done) {
    const sums = ledger(this.trace, done);
    for (const [key, dd] of Object.entries(this.figures)) {
      dd.dataset.value = sums[key];
      setText(dd.lastChild, digits.format(sums[key]));
    }
    setText(this.seatsSoFar, fill(this.words.of, { total: digits.format(sums.seats) }));
    const share = sums.wasted_slot_steps / (sums.total_slot_steps || 1);
    setText(this.figures.wasted_slot_steps.firstChild, percent.format(share));
    const shares = seatShares(this.trace, done);
    const nameOf = (index) => this.trace.requests.get(index).request_id;
    drawSeats(this.seatsBrush, shares, sums.idle_slot_steps, this.most.seats, nameOf);
  }

  /** The slots in words, for a screen reader; not at every frame while playing. */
  nameSlots() {
    const pass = this.at[this.column];
    this.options.forEach((option, slot) => {
      const said = pass < 0 ? this.words.no_pass : slotWords(this.trace, slot, pass, this.words);
      setText(option, said);
    });
  }

  /** Rows for "who used the seats": request, useful slot-steps, held after its end. */
  seatRows(column) {
    const shares = seatShares(this.trace, this.done[column]);
    return shares.sort((one, other) => other[2] - one[2]).slice(0, MOST_ROWS).map(
      ([index, useful, held]) => [this.trace.requests.get(index).request_id, useful, held]);
  }

  /** Rows for "this pass as a table": slot, state, request, token, KV. */
  tableRows(column) {
    const pass = this.at[column];
    return this.options.map((_, slot) => {
      const run = pass < 0 ? undefined : cellAt(this.trace, slot, pass);
      if (!run) return [slot, this.words.idle, "", "", 0];
      const { request_id: id } = this.trace.requests.get(run.request);
      return [slot, this.words[run.state], id, tokenAt(this.trace, run, pass) ?? "", kvAt(run, pass)];
    });
  }
}
