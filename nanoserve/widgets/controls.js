// What stands below the score: the strip, the controls, the legend and the tables.
// Each function makes its elements and gives them back by name; the player moves them.
import { control, fill, iconButton, node } from "./dom.js";

const SPEEDS = [0.5, 1, 2, 4, 8];
export const STATES = ["prefill", "pad", "decode", "finished", "idle"];

/** The share of useful slots as a line, and over it a slider that one can scrub. */
export function makeStrip(words, panels, first, last) {
  const made = { strip: node("canvas", { "aria-hidden": "true" }), thumb: node("div.thumb"),
    window: node("div.window"), shares: node("p.shares"),
    range: control("input", { type: "range", min: first, max: last, step: 1,
      "aria-label": words.axis }) };
  made.track = node("div.track", {}, made.strip, made.window, made.thumb, made.range);
  const label = node("p.label", {}, words.useful_share);
  if (panels.length > 1) {
    label.append(node("span.dashed", {}, panels[0].name), node("span", {}, panels[1].name));
  }
  made.stripRow = node("div.strip", {}, label, made.track, made.shares);
  return made;
}

export function makeControls(words) {
  const buttons = {};
  const button = (key) => (buttons[key] = iconButton(key, words[key]));
  const now = node("p.now");
  const select = control("select", {}, ...SPEEDS.map((speed) =>
    node("option", { value: speed }, `${speed}×`)));
  const keys = ["previous_event", "back", "play", "forward", "next_event"];
  const row = node("div.controls", {}, ...keys.map(button), now,
    node("label.speed", {}, words.speed, " ", select),
    node("span.zoom", {}, button("zoom_out"), button("zoom_in")));
  return { buttons, now, select, controlRow: row };
}

export function makeLegend(words) {
  const samples = STATES.map(() => node("canvas.mark", { "aria-hidden": "true" }));
  const items = STATES.map((state, place) => node("li", {}, samples[place], words[state]));
  return { samples, legend: node("ul.legend", {}, ...items) };
}

/** For each trace: this pass, slot by slot, and who used the seats so far. */
export function makeTables(words, panels) {
  const tables = panels.flatMap((panel) => [
    makeTable(words, panel.name, "table_pass", ["slot", "state", "request", "token", "kv"],
      (column) => panel.tableRows(column)),
    makeTable(words, panel.name, "table_seats", ["request", "useful", "held"],
      (column) => panel.seatRows(column))]);
  const inner = control("div", { tabindex: 0, role: "group", "aria-label": words.table },
    ...tables.map(({ table }) => table));
  const folded = node("details.table", {}, control("summary", {}, words.table), inner);
  return { tables, table: folded, tablesBox: inner };
}

function makeTable(words, engine, caption, columns, rows) {
  const heads = columns.map((name) =>
    node("th", { scope: "col" }, words[`column_${name}`]));
  const body = node("tbody");
  const table = node("table", {}, node("caption", {}, fill(words[caption], { engine })),
    node("thead", {}, node("tr", {}, ...heads)), body);
  return { table, body, rows };
}
