// Reading a trace (the JSON of SlotTrace.to_dict()): all that the player counts or
// says. Nothing here needs a page, so the tests run it beside the Python it must
// agree with: `ledger` is SlotTrace.ledger, `sentence` is picture.sentence.

import { fill } from "./dom.js";

const COUNTED = [
  "passes", "total_slot_steps", "useful_slot_steps", "wasted_slot_steps",
  "prompt_tokens", "pad_tokens", "generated_tokens", "recomputed_tokens",
  "kv_reserved_token_steps", "kv_live_token_steps", "kv_finished_token_steps",
];

/** A trace with its runs as objects, findable by slot and by request. */
export function readTrace(stored) {
  const runs = stored.runs.map((row) => readRun(stored.run_fields, row));
  const requests = new Map();
  for (const [index, record] of Object.entries(stored.requests)) {
    requests.set(Number(index), { index: Number(index), ...record, runs: [] });
  }
  const bySlot = Array.from({ length: stored.max_num_seqs }, () => []);
  for (const run of runs) {
    bySlot[run.slot].push(run);
    requests.get(run.request).runs.push(run);
  }
  const trace = { stored, runs, requests, bySlot, engine: stored.engine,
    slots: stored.max_num_seqs, capacity: stored.slot_capacity,
    passes: stored.passes, clocks: clocksOf(stored) };
  // of a bounded history only these passes are sure to be whole
  const bounded = stored.history !== null;
  trace.first = bounded ? Math.max(0, stored.passes - stored.history) : 0;
  for (const request of requests.values()) settle(request);
  return trace;
}

function readRun(fields, row) {
  const run = {};
  fields.forEach((name, place) => { run[name] = row[place]; });
  run.end = run.start + run.passes;
  return run;
}

/** When each pass began, on the clock that jumps over time in which nobody is here. */
function clocksOf(stored) {
  const clocks = new Float64Array(stored.passes);
  let [ahead, jump] = [0, 0];
  for (let pass = 0; pass < stored.passes; pass += 1) {
    while (jump < stored.jumps.length && stored.jumps[jump][0] <= pass) {
      ahead = stored.jumps[jump][1] - stored.jumps[jump][0];
      jump += 1;
    }
    clocks[pass] = pass + ahead;
  }
  return clocks;
}

/** Which token each run begins with, and where the request sat. */
function settle(request) {
  const made = request.runs.reduce((sum, run) => sum + run.emitted * run.passes, 0);
  // counted from the end: a bounded history has forgotten the first runs
  let next = request.token_ids.length - made;
  request.stays = [];
  for (const run of request.runs) {
    run.made = next;
    next += run.emitted * run.passes;
    const stay = request.stays.at(-1);
    // a gap in which its K and V stayed is no gap: it only had no budget
    if (stay && stay.slot === run.slot && run.kv - run.fed === stay.kv) {
      stay.end = run.end;
    } else {
      request.stays.push({ slot: run.slot, start: run.start, end: run.end });
    }
    request.stays.at(-1).kv = kvAt(run, run.end - 1);
  }
}

/** What the slot holds after ``pass``. */
export function kvAt(run, pass) {
  return run.kv + run.fed * (pass - run.start);
}

/** The run of ``slot`` in ``pass``, or undefined: idle. */
export function cellAt(trace, slot, pass) {
  const runs = trace.bySlot[slot];
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end <= pass) low = middle + 1;
    else high = middle;
  }
  const run = runs[low];
  return run && run.start <= pass ? run : undefined;
}

/** The text of the token that ``run`` made in ``pass``, or undefined. */
export function tokenAt(trace, run, pass) {
  if (!run.emitted) return undefined;
  const id = trace.requests.get(run.request).token_ids[run.made + pass - run.start];
  return plain(trace.stored.pieces[id] ?? String(id));
}

/** Words that fit in a line, as picture.py makes them. */
function plain(text) {
  let signs = [...text.replaceAll("\n", "\\n").trim()];
  if (signs.length > 40) signs = [...signs.slice(0, 39), "…"];
  const bad = /[\p{Cc}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/gu; // controls, half surrogates
  return signs.join("").replace(bad, "\ufffd") || "' '";
}

// --- the bill ---

/** The bill after the first ``passes`` passes; the names are SlotLedger's. */
export function ledger(trace, passes) {
  const sums = Object.fromEntries(COUNTED.map((name) => [name, 0]));
  const bounded = trace.stored.history !== null;
  if (bounded) {
    // the first runs are gone: take what came later off the whole
    Object.assign(sums, trace.stored.ledger);
    countRuns(sums, trace, passes, trace.passes, -1);
  } else {
    countRuns(sums, trace, 0, passes, 1);
  }
  sums.passes = passes;
  if (!trace.stored.block_size) {
    sums.kv_reserved_token_steps = passes * trace.slots * trace.capacity;
  }
  return withShares(sums, trace.slots * passes);
}

function countRuns(sums, trace, from, to, sign) {
  const block = trace.stored.block_size;
  for (const run of trace.runs) {
    if (run.start >= to) break; // runs are kept in the order in which they began
    const first = Math.max(run.start, from);
    const passes = Math.min(run.end, to) - first;
    if (passes <= 0) continue;
    countRun(sums, run, first, passes, sign);
    if (block) sums.kv_reserved_token_steps += sign * inBlocks(run, first, passes, block);
  }
}

/** KV token-steps of the blocks that a run filled: paged KV is reserved as needed. */
function inBlocks(run, first, passes, block) {
  let sum = 0;
  for (let pass = first; pass < first + passes; pass += 1) {
    sum += Math.ceil(kvAt(run, pass) / block) * block;
  }
  return sum;
}

function countRun(sums, run, first, passes, sign) {
  // kv, kv + fed, kv + 2 fed, ..
  const held = kvAt(run, first) * passes + (run.fed * passes * (passes - 1)) / 2;
  sums.total_slot_steps += sign * passes;
  if (run.state === "finished") {
    sums.wasted_slot_steps += sign * passes;
    sums.kv_finished_token_steps += sign * held;
    return;
  }
  sums.useful_slot_steps += sign * passes;
  sums.kv_live_token_steps += sign * held;
  sums.generated_tokens += sign * run.emitted * passes;
  sums.pad_tokens += sign * run.pads * passes;
  if (run.state !== "prefill") return;
  // after a preemption tokens are fed a second time, and with them some of the answer
  const { recomputed = 0, answer = 0 } = run;
  sums.recomputed_tokens += sign * recomputed * passes;
  sums.prompt_tokens += sign * (run.fed - recomputed - answer) * passes;
}

function withShares(sums, seats) {
  sums.seats = seats;
  sums.idle_slot_steps = seats - sums.total_slot_steps;
  sums.empty_seats = sums.idle_slot_steps + sums.wasted_slot_steps;
  const held = sums.kv_live_token_steps + sums.kv_finished_token_steps;
  sums.kv_free_token_steps = sums.kv_reserved_token_steps - held;
  return sums;
}

/** Who used the seats so far: [request index, useful, wasted], in order of arrival. */
export function seatShares(trace, passes) {
  const shares = [];
  for (const { index, runs } of trace.requests.values()) {
    const share = [index, 0, 0];
    for (const run of runs) {
      const used = Math.min(run.end, passes) - run.start;
      if (used > 0) share[run.state === "finished" ? 2 : 1] += used;
    }
    if (share[1] + share[2]) shares.push(share);
  }
  return shares;
}

/** How many slots were useful in each pass. */
export function usefulSlots(trace) {
  const steps = new Int32Array(trace.passes + 1);
  for (const run of trace.runs) {
    if (run.state === "finished") continue;
    steps[run.start] += 1;
    steps[run.end] -= 1;
  }
  for (let pass = 1; pass < steps.length; pass += 1) steps[pass] += steps[pass - 1];
  return steps.subarray(0, trace.passes);
}

// --- the queue ---

/**
 * Who waits at ``clock``, after ``done`` passes: [request, since], first come first.
 * One that lost its seat waits again, from then on.
 */
export function waiting(trace, done, clock) {
  const queue = [];
  for (const request of trace.requests.values()) {
    const over = request.finished !== null && request.finished <= done;
    if (over || request.arrival > clock || seatAt(request, done)) continue;
    const left = request.stays.findLast((stay) => stay.end <= done);
    queue.push([request, left ? trace.clocks[left.end] ?? clock : request.arrival]);
  }
  return queue.sort(([one, since], [other, too]) => since - too || one.index - other.index);
}

function seatAt(request, pass) {
  return request.stays.some((stay) => stay.start <= pass && pass < stay.end);
}

/** Who has not arrived yet: how many, and when the next one does. */
export function toCome(trace, clock) {
  let [count, next] = [0, Infinity];
  for (const request of trace.requests.values()) {
    if (request.arrival <= clock) continue;
    count += 1;
    next = Math.min(next, request.arrival);
  }
  return { count, next };
}

// --- one clock for several traces ---

/**
 * The columns of the score: every moment in which any of the traces ran a pass.
 * ``at[i][column]`` is the pass that trace i ran then, or -1; ``done[i][column]`` how
 * many it had run by the end of it.
 */
export function timeline(traces) {
  const moments = new Set();
  for (const trace of traces) {
    for (let pass = trace.first; pass < trace.passes; pass += 1) {
      moments.add(trace.clocks[pass]);
    }
  }
  const clocks = Float64Array.from(moments).sort();
  return { clocks, ...placed(traces, clocks) };
}

function placed(traces, clocks) {
  const [at, done] = [[], []];
  for (const trace of traces) {
    let next = trace.first;
    const mine = Int32Array.from(clocks, (clock) => {
      return trace.clocks[next] === clock ? next++ : -1;
    });
    let last = trace.first;
    at.push(mine);
    done.push(mine.map((pass) => (last = pass < 0 ? last : pass + 1)));
  }
  return { at, done };
}

/** The passes in which a request joins, ends or loses its seat. */
export function eventPasses(trace) {
  const found = new Set();
  for (const request of trace.requests.values()) {
    if (request.finished) found.add(request.finished - 1);
    for (const stay of request.stays) {
      found.add(stay.start);
      const ended = request.finished !== null && request.finished <= stay.end;
      if (!ended && stay.end < trace.passes) found.add(stay.end);
    }
  }
  return found;
}

/** The first pass after a first request has ended: now it matters who has the seat. */
export function firstWorthSeeing(trace) {
  let first = Infinity;
  for (const { finished } of trace.requests.values()) {
    if (finished && finished >= trace.first) first = Math.min(first, finished);
  }
  return first < trace.passes ? first : Math.min(trace.first + 1, trace.passes - 1);
}

// --- in words ---

/** What ``slot`` does in ``pass``. */
export function slotWords(trace, slot, pass, words) {
  const run = cellAt(trace, slot, pass);
  if (!run) return fill(words.slot_idle, { slot });
  const request = trace.requests.get(run.request);
  const template = words[`slot_${run.state}`];
  let said = fill(template, { slot, request: request.request_id });
  const token = tokenAt(trace, run, pass);
  if (token !== undefined) said = fill(words.slot_token, { said, token });
  if (!ends(trace, run, pass)) return said;
  return fill(words.slot_ends, { said, reason: request.finish_reason });
}

/** Is this the last pass in which the request does anything? */
export function ends(trace, run, pass) {
  const { finished } = trace.requests.get(run.request);
  return run.state !== "finished" && finished === pass + 1;
}

/** A pass as a sentence; of many slots (more than ``mostTold``) only the sums. */
export function sentence(trace, pass, words, mostTold) {
  const slots = Array.from({ length: trace.slots }, (_, slot) => slot);
  if (trace.slots > mostTold) return sums(trace, pass, words, slots);
  const told = slots.map((slot) => slotWords(trace, slot, pass, words));
  return fill(words.pass_is, { number: pass + 1, slots: told.join(words.joined_by) });
}

function sums(trace, pass, words, slots) {
  const count = { number: pass + 1, decode: 0, prefill: 0, finished: 0, idle: 0, ends: 0 };
  for (const slot of slots) {
    const run = cellAt(trace, slot, pass);
    count[run ? run.state : "idle"] += 1;
    if (run && ends(trace, run, pass)) count.ends += 1;
  }
  return fill(words.pass_many, count);
}

/** A cell in full, for the tooltip: what the slot does, then its numbers. */
export function cellWords(trace, slot, pass, words) {
  const said = slotWords(trace, slot, pass, words);
  const run = cellAt(trace, slot, pass);
  return [fill(words.tip_pass, { number: pass + 1, said }),
    ...(run ? numbers(trace, run, pass, words) : [])];
}

function numbers(trace, run, pass, words) {
  const request = trace.requests.get(run.request);
  const nth = run.made + pass - run.start + 1;
  const lines = [];
  if (run.state === "prefill") lines.push(fill(words.tip_prompt, run));
  if (run.emitted) lines.push(fill(words.tip_token, { nth, limit: request.max_tokens }));
  const values = { kv: kvAt(run, pass), capacity: trace.capacity };
  return [...lines, fill(words.tip_kv, values)];
}
