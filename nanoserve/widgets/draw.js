// Where things stand, and the drawing of them: of the score only what is seen, so that
// thousands of passes cost no more than a page of them.
import { fillState, font, hueOf, idle, outline, short, write, writeOver } from "./brush.js";
import { cellAt, ends, kvAt, tokenAt } from "./read.js";

const AXIS = 38; // pixels above the first row: the playhead's flag, then the numbers
const WIDEST = 58; // pixels a column, if there are few
const CELLS = 11; // from this width on, single cells are drawn
const TOKENS = 17; // from this one their tokens
const LETTERS = 30; // and from this one the letter in each

// --- the score ---

/** Where things stand: shared by all panels of a player, so that columns align. */
export function layoutFor(width, columns, slots, zoom, scale) {
  const label = (12 + 8 * String(slots - 1).length) * scale;
  const room = Math.max(width - label - 1, 40);
  const fitting = Math.min(WIDEST * scale, room / columns);
  const column = Math.max(zoom ?? fitting, fitting);
  const visible = Math.min(columns, Math.max(1, Math.floor(room / column + 1e-6)));
  return { width, columns, label, fitting, column, visible, first: 0,
    axis: AXIS * scale, ...rowsFor(slots, scale) };
}

function rowsFor(slots, scale) {
  const row = Math.min(36 * scale, Math.max(4, Math.floor((440 * scale) / slots)));
  return { row, bar: row - (row >= 20 ? 5 : row >= 6 ? 1 : 0) };
}

export const xOf = (layout, column) =>
  layout.label + (column - layout.first) * layout.column;
export const yOf = (layout, slot) => layout.axis + layout.row * slot;
/** The strip below always shows all columns. */
export const stripX = (layout, column) => layout.label + column * layout.fitting;

export function scoreHeight(layout, slots) {
  return layout.axis + layout.row * slots;
}

/** The columns that are seen: cells, axis, slot numbers. `panel` has the trace's. */
export function drawScore(brush, layout, panel, words) {
  brush.pen.clearRect(0, 0, brush.width, brush.height);
  drawAxis(brush, layout, panel, words);
  panel.names = [];
  for (let slot = 0; slot < panel.trace.slots; slot += 1) {
    drawSeat(brush, layout, panel, slot);
    for (const run of visibleRuns(layout, panel, slot)) {
      drawRun(brush, layout, panel, run);
    }
  }
  // last, or the next run would cover them
  font(brush, 12, "bold");
  for (const [name, x, y] of panel.names) writeOver(brush, name, x, y, "left");
  drawEnd(brush, layout, panel, words);
}

function drawAxis(brush, layout, { numbers, jumps, clocks }, words) {
  font(brush, 11);
  const stride = strideFor(30 * brush.theme.scale, layout.column);
  for (let column = layout.first; column < layout.first + layout.visible; column += 1) {
    if (jumps.has(column)) {
      const clock = words.clock.replace("{clock}", clocks[column] + 1);
      drawJump(brush, layout, xOf(layout, column), clock);
    }
    const number = numbers(column);
    if (column === 0 || number % stride === 0) drawNumber(brush, layout, column, number);
  }
}

function drawNumber(brush, layout, column, number) {
  const middle = xOf(layout, column) + layout.column / 2;
  // beside the 1 there must be room, and the last must not be cut off
  if (column && !layout.first && middle - layout.label < 24 * brush.theme.scale) return;
  const half = brush.pen.measureText(String(number)).width / 2;
  const x = Math.min(middle, brush.width - half);
  write(brush, String(number), x, layout.axis - 10 * brush.theme.scale, "center", brush.theme.quiet);
}

/** Between these columns nobody was here, and the clock leapt. */
function drawJump(brush, layout, x, words) {
  const { pen, theme, height } = brush;
  pen.strokeStyle = theme.quiet;
  pen.lineWidth = 1.5;
  pen.setLineDash([1, 3]);
  pen.beginPath();
  pen.moveTo(x, 2);
  pen.lineTo(x, height);
  pen.stroke();
  pen.setLineDash([]);
  write(brush, words, x + 5, 8 * theme.scale, "left", theme.quiet);
}

function strideFor(room, column) {
  for (let scale = 1; ; scale *= 10) {
    for (const step of [1, 2, 5]) {
      if (step * scale * column >= room) return step * scale;
    }
  }
}

function drawSeat(brush, layout, panel, slot) {
  const { theme } = brush;
  const y = yOf(layout, slot);
  const every = layout.row >= 13 * theme.scale ? 1 : 8;
  if (slot % every === 0) {
    font(brush, 12);
    const middle = y + Math.max(layout.bar, 10) / 2;
    write(brush, String(slot), layout.label - 8 * theme.scale, middle, "right");
  }
  const [from, to] = extent(layout, panel);
  const wide = (to - from) * layout.column;
  if (wide > 0) idle(brush, [xOf(layout, from), y, wide, layout.bar]);
}

/** The columns of this trace that are in view. */
function extent(layout, panel) {
  const end = panel.columnOf[panel.trace.passes - 1] + 1;
  const first = panel.columnOf[panel.trace.first];
  return [Math.max(first, layout.first), Math.min(end, layout.first + layout.visible)];
}

function* visibleRuns(layout, panel, slot) {
  const runs = panel.trace.bySlot[slot];
  const from = layout.first ? panel.done[layout.first - 1] : panel.trace.first;
  const to = panel.done[layout.first + layout.visible - 1];
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end <= from) low = middle + 1;
    else high = middle;
  }
  for (; low < runs.length && runs[low].start < to; low += 1) yield runs[low];
}

function drawRun(brush, layout, panel, run) {
  const first = panel.columnOf[Math.max(run.start, panel.trace.first)];
  const end = panel.columnOf[run.end - 1] + 1;
  const from = Math.max(first, layout.first);
  const to = Math.min(end, layout.first + layout.visible);
  const y = yOf(layout, run.slot);
  const pads = run.pads / (run.pads + run.fed || 1);
  const hue = hueOf(brush, run.request);
  const [x, wide] = [xOf(layout, from), (to - from) * layout.column];
  if (layout.column < CELLS || run.state === "finished") {
    fillState(brush, run.state, hue, [x, y, wide, layout.bar], pads);
  } else {
    for (let column = from; column < to; column += 1) {
      const box = [xOf(layout, column) + 0.5, y, layout.column - 1, layout.bar];
      fillState(brush, run.state, hue, box, pads);
    }
  }
  drawEdges(brush, layout, panel.trace, run, [from === first && x, x + wide, y, hue, to === end]);
  drawTokens(brush, layout, panel, run, from, to);
}

/** A heavy edge where a request sits down, a final barline where it ends. */
function drawEdges(brush, layout, trace, run, [x, right, y, hue, whole]) {
  const thick = Math.min(3 * brush.theme.scale, layout.column);
  brush.pen.fillStyle = hue;
  const joins = trace.requests.get(run.request).stays.some((stay) => stay.start === run.start);
  if (joins && x !== false) brush.pen.fillRect(x + 0.5, y, thick, layout.bar);
  if (layout.column >= 4 && whole && ends(trace, run, run.end - 1)) {
    brush.pen.fillRect(right - thick, y, thick - 0.5, layout.bar);
  }
}

function drawTokens(brush, layout, panel, run, from, to) {
  const { scale } = brush.theme;
  if (layout.bar < 12 * scale) return;
  const middle = yOf(layout, run.slot) + layout.bar / 2 + 0.5;
  if (layout.column < TOKENS * scale) {
    drawName(brush, layout, panel, run, from, middle);
    return;
  }
  for (let column = from; column < to; column += 1) {
    const named = run.state !== "decode" && column === from;
    const left = named ? nameCell(brush, layout, panel, run, column, middle) : 0;
    if (run.emitted) drawToken(brush, layout, panel, run, column, left, middle);
    if (!named && layout.column >= LETTERS * scale) nameSmall(brush, layout, panel, run, column);
  }
}

function drawToken(brush, layout, panel, run, column, left, middle) {
  font(brush, layout.column >= 26 * brush.theme.scale ? 13 : 11);
  const token = tokenAt(panel.trace, run, panel.at[column]) ?? "";
  const words = short(brush, token, layout.column - 3 - (left && left + 4 * brush.theme.scale));
  if (left && words !== token) return; // not room for both: the letter
  const x = xOf(layout, column) + left + (layout.column - left) / 2;
  (run.pads ? writeOver : write)(brush, words, x, middle, "center");
}

/** The letter in a cell: a prompt's, or the first that is finished and held. */
function nameCell(brush, layout, panel, run, column, middle) {
  const { scale } = brush.theme;
  font(brush, 12, "bold");
  const id = panel.trace.requests.get(run.request).request_id;
  const room = run.emitted ? layout.column / 2 : layout.column - 6 * scale;
  const name = short(brush, id, room) || id.slice(0, 1);
  writeOver(brush, name, xOf(layout, column) + 6 * scale, middle, "left");
  return 5 * scale + brush.pen.measureText(name).width;
}

function nameSmall(brush, layout, panel, run, column) {
  const { scale, quiet } = brush.theme;
  font(brush, 9);
  const name = short(brush, panel.trace.requests.get(run.request).request_id, layout.column / 2);
  const [x, y] = [xOf(layout, column) + 4 * scale, yOf(layout, run.slot) + 7 * scale];
  if (run.state === "decode") write(brush, name, x, y, "left", quiet);
}

/** Where cells are too narrow, the letter stands at the start of a stay, and where
    a seat begins to be held. */
function drawName(brush, layout, panel, run, from, middle) {
  const { scale } = brush.theme;
  const request = panel.trace.requests.get(run.request);
  const stay = request.stays.find(({ start, end }) => start <= run.start && run.start < end);
  const end = run.state === "finished" ? run.end : lastUseful(request, stay);
  const begins = run.start === stay.start || run.state === "finished" || from === layout.first;
  const room = (panel.columnOf[end - 1] + 1 - from) * layout.column - 8 * scale;
  if (!begins || room < 9 * scale) return;
  font(brush, 12, "bold");
  const name = short(brush, request.request_id, room);
  panel.names.push([name, xOf(layout, from) + 6 * scale, middle]);
}

function lastUseful(request, stay) {
  return request.finished === null ? stay.end : Math.min(stay.end, request.finished);
}

/** A trace that is over before the other leaves its columns blank: passes saved. */
function drawEnd(brush, layout, panel, words) {
  const { trace, columnOf } = panel;
  const end = columnOf[trace.passes - 1] + 1;
  if (end === layout.columns) return;
  const room = (layout.first + layout.visible - end) * layout.column - 20;
  font(brush, 12);
  const said = words.done.replace("{passes}", trace.passes.toLocaleString("en-US"));
  const told = brush.pen.measureText(said).width <= room ? said : "";
  const y = layout.axis + (layout.row * trace.slots) / 2;
  write(brush, told, xOf(layout, end) + 14, y, "left", brush.theme.quiet);
}

// --- beside and below the score ---

/** What each slot holds of its capacity: live, held by a finished request, free. */
export function drawKv(brush, layout, { trace }, pass) {
  brush.pen.clearRect(0, 0, brush.width, brush.height);
  const width = brush.width - 1;
  for (let slot = 0; slot < trace.slots; slot += 1) {
    const y = yOf(layout, slot);
    const run = pass < 0 ? undefined : cellAt(trace, slot, pass);
    outline(brush, brush.theme.line, [0, y, width, layout.bar]);
    if (run) drawHeld(brush, layout, trace, run, kvAt(run, pass), y);
  }
}

function drawHeld(brush, layout, trace, run, kv, y) {
  const { scale } = brush.theme;
  const part = Math.min(1, kv / trace.capacity) * (brush.width - 1);
  const state = run.state === "finished" ? "finished" : "prefill";
  fillState(brush, state, hueOf(brush, run.request), [0, y, Math.max(part, 2), layout.bar]);
  if (layout.bar < 12 * scale || brush.width < 30) return;
  font(brush, 11);
  writeOver(brush, String(kv), brush.width - 5 * scale, y + layout.bar / 2 + 0.5, "right");
}

/** The share of useful slots, pass by pass; of two traces the first is dashed. */
export function drawStrip(brush, layout, panels) {
  const { pen, theme, height } = brush;
  pen.clearRect(0, 0, brush.width, height);
  const right = stripX(layout, layout.columns);
  outline(brush, theme.line, [layout.label, 0, right - layout.label, height]);
  panels.forEach((panel, place) => {
    const dashed = place < panels.length - 1;
    const path = sharePath(layout, panel, height);
    if (!dashed) shade(brush, path.area);
    pen.strokeStyle = dashed ? theme.quiet : theme.ink;
    pen.lineWidth = 1.5;
    pen.setLineDash(dashed ? [4, 3] : []);
    pen.stroke(path.line);
    pen.setLineDash([]);
  });
}

function sharePath(layout, panel, height) {
  const line = new Path2D();
  const last = panel.columnOf[panel.trace.passes - 1] + 1;
  for (let column = 0; column < last; column += 1) {
    const pass = panel.at[column];
    const share = pass < 0 ? 0 : panel.useful[pass] / panel.trace.slots;
    const y = height - 2 - share * (height - 4);
    if (column) line.lineTo(stripX(layout, column), y);
    else line.moveTo(stripX(layout, column), y);
    line.lineTo(stripX(layout, column + 1), y);
  }
  const area = new Path2D(line);
  area.lineTo(stripX(layout, last), height);
  area.lineTo(stripX(layout, 0), height);
  return { line, area };
}

function shade(brush, area) {
  brush.pen.globalAlpha = 0.1;
  brush.pen.fillStyle = brush.theme.ink;
  brush.pen.fill(area);
  brush.pen.globalAlpha = 1;
}

/**
 * Who used the seats so far: useful by request, then held by request, then idle. Its
 * length is the seats of `most`, so that it grows, and two of them compare.
 */
export function drawSeats(brush, shares, idleSeats, most, nameOf) {
  brush.pen.clearRect(0, 0, brush.width, brush.height);
  const unit = (brush.width - 1) / most;
  let x = 0;
  const segment = (state, index, steps) => {
    // on whole pixels: of thousands of requests, those that show are drawn
    const left = Math.round(x);
    x += steps * unit;
    const box = [left, 0, Math.round(x) - left, brush.height];
    if (!box[2]) return;
    fillState(brush, state, hueOf(brush, index), box);
    if (box[2] >= 16 * brush.theme.scale) nameSegment(brush, nameOf(index), box);
  };
  outline(brush, brush.theme.line, [0, 0, brush.width, brush.height]);
  for (const [index, useful] of shares) segment("prefill", index, useful);
  for (const [index, , wasted] of shares) segment("finished", index, wasted);
  if (idleSeats > 0) idle(brush, [x, 0, idleSeats * unit, brush.height]);
}

function nameSegment(brush, id, [x, , width, height]) {
  font(brush, 11, "bold");
  const name = short(brush, id, width - 8);
  writeOver(brush, name, x + width / 2, height / 2 + 0.5, "center");
}
