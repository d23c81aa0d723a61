// What happens now: figures, charts of the last ten minutes, upstreams, engines, rules, errors.

import { chart } from "../charts.js";
import { brief, bytes, count, dollars, facts, fill, h, rate, seconds, share, table, utc } from "../dom.js";
import { covered, follow, grown, latest, quantiles, rates, times, values } from "../history.js";
import { eventTable } from "./events.js";

const KINDS = [
  { name: "exact hits", key: "exact", colour: "exact" },
  { name: "semantic hits", key: "semantic", colour: "semantic" },
  { name: "stale hits", key: "stale", colour: "stale" },
  { name: "shared calls", key: "shared", colour: "shared" },
  { name: "misses", key: "miss", colour: "miss" },
  { name: "bypasses", key: "bypass", colour: "bypass", dash: [4, 4] },
  { name: "errors", key: "error", colour: "error" },
];
const HITS = ["exact", "semantic", "stale", "shared"];
const WAYS = { exact: "exact hits", semantic: "semantic hits", coalescing: "shared calls", prefix: "upstreams' own caches", compression: "compression" };

const sum = (object, keys) => keys.reduce((total, key) => total + (object[key] ?? 0), 0);
const hits = (requests) => sum(requests, HITS);
const lookedUp = (requests) => hits(requests) + (requests.miss ?? 0);

export function overview(place) {
  const state = h("div", { class: "state" });
  const tiles = h("div", { class: "tiles" });
  const tables = h("div", { class: "tables" });
  const charts = [
    [chart("Requests per second", KINDS, rate), () => KINDS.map((kind) => rates((poll) => poll.requests[kind.key] ?? 0))],
    [chart("Time to first token, hits and misses", [
      { name: "hits, median", colour: "exact" },
      { name: "hits, 95 %", colour: "exact", dash: [5, 4] },
      { name: "misses, median", colour: "miss" },
      { name: "misses, 95 %", colour: "miss", dash: [5, 4] },
    ], seconds, { log: true }), () => [quantiles("hit", 0.5), quantiles("hit", 0.95), quantiles("miss", 0.5), quantiles("miss", 0.95)]],
    [chart("Tokens saved per second", ["exact", "semantic", "coalescing"].map((way) =>
      ({ name: WAYS[way], colour: way === "coalescing" ? "shared" : way })), rate),
    () => ["exact", "semantic", "coalescing"].map((way) => rates((poll) => poll.saved[way]?.tokens ?? 0))],
    [chart("Calls to upstreams", [
      { name: "under way", colour: "miss" },
      { name: "waiting for room", colour: "stale" },
      { name: "waiting in engines", colour: "error", dash: [5, 4] },
    ], count, { whole: true }), () => [values((poll) => poll.calls), values((poll) => poll.waiting), values((poll) => engineSum(poll, "waiting"))]],
  ];
  const alarm = storeAlarm();
  fill(place, state, alarm.element, tiles, h("p", { class: "hint" }, "Charts: the last ten minutes, in UTC"),
    h("div", { class: "charts" }, charts.map(([each]) => each.figure)), tables);

  const draw = (problem) => {
    const now = latest();
    fill(state, status(now, problem));
    if (!now) return;
    alarm.show(now);
    fill(tiles, figures(now));
    for (const [each, read] of charts) each.draw(times(), ...read());
    const at = document.activeElement?.getAttribute("aria-label");
    fill(tables, latestEvents(now), upstreams(now), engines(now), rules(now), errors(now));
    // A region that was scrolled by keyboard keeps the focus.
    if (at) [...tables.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === at)?.focus();
  };
  draw(null);
  const stop = follow(draw);
  return () => {
    stop();
    for (const [each] of charts) each.close();
  };
}

function engineSum(poll, figure) {
  const found = Object.values(poll.engines).map((engine) => engine[figure]);
  return found.length ? found.reduce((total, value) => total + value, 0) : null;
}

function status(now, problem) {
  if (problem) return h("p", { class: "problem", role: "alert" }, problem.message, now && [" The figures are of ", utc(now.time), "."]);
  if (!now) return h("p", { class: "hint" }, "Loading …");
  const { ready } = now;
  const list = [...(ready.status === "ready" ? [] : ready.reasons), ...problems(ready)];
  const word = ready.status === "ready" ? "Ready" : "Not ready";
  return [
    h("p", { class: `badge ${ready.status === "ready" && !list.length ? "good" : "bad"}` }, list.length ? `${word}, ${list.length} to look at` : word),
    list.length ? h("ul", { class: "problems" }, list.map((text) => h("li", {}, text))) : null,
  ];
}

const STORES = {
  redis: ["Redis", 'See that Redis runs, and that this machine reaches it: redis-cli -u "$REFRAIN_STORE" ping, then refrain doctor.'],
  disk: ["The disk", "See that the disk has room, and is not read-only: df, then refrain doctor."],
};

const REFUSES = "refuses writes";

/** Make the part that says what a fault of the store means. A screen reader hears it once. */
function storeAlarm() {
  const element = h("div", { role: "alert" });
  const since = h("span");
  let shown = null;
  return {
    element,
    show({ ready: { store }, time }) {
      const name = store?.problem ? store.why : "";
      if (name) fill(since, utc(store.since), `, for ${seconds(Math.max(0, time - store.since))}`);
      if (name === shown) return;
      shown = name;
      if (!name) return fill(element);
      const [kind, help] = STORES[store.kind] ?? [store.kind, "Run refrain doctor."];
      const [what, meaning, until] = store.problem === REFUSES
        ? ["refuses writes", "Stored answers are served. New answers are not stored.", "Each new answer tries it again."]
        : ["does not answer", "Requests are forwarded to the upstreams, and no wrong answer is served. New answers are not stored. Entries cannot be listed or purged.", "The gateway tries the store every two seconds, and uses it as soon as it answers."];
      fill(element, h("section", { class: "card alarm" },
        h("h2", {}, `The store ${what} (${kind})`),
        facts([
          ["Since", since],
          ["Fault", store.why],
          ["What it means", meaning],
          ["What to do", `${help} ${until}`],
        ])));
    },
  };
}

function latestEvents(now) {
  return h("section", {}, eventTable("Latest events", now.events), h("p", { class: "hint" }, h("a", { href: "#/events" }, "All events")));
}

function problems(ready) {
  const found = [];
  const say = (text, value) => value && found.push(`${text}: ${value}`);
  say("Policy, the last good one is in force", ready.policy?.problem);
  say("Store", ready.store?.problem && `${ready.store.problem}, see below`);
  for (const text of ready.keys?.problems ?? []) say("Keys", text);
  for (const text of ready.background ?? []) say("Background work", text);
  say(ready.verifier?.kind === "none" ? "Verifier, no semantic hits" : "Verifier", ready.verifier?.fault);
  say("Calibration", ready.verifier?.problem);
  say("Error budgets", ready.verifier?.unlike);
  say("Vectors", ready.vectors?.fault);
  for (const rule of ready.rules_off ?? []) say("Semantic hits are off, too many were wrong", rule);
  for (const [rule, budget] of Object.entries(ready.budgets_not_kept ?? {})) say(`No threshold keeps the error budget of ${rule}`, share(budget));
  for (const route of ready.hints_never_hit ?? []) say("Hints never hit", route);
  for (const [name, one] of Object.entries(ready.upstreams ?? {})) {
    if (one.state !== "up") say(`Upstream ${name} ${one.state === "open" ? "gets no requests" : `is ${one.state}`}`, one.why ?? "no reason known");
  }
  return found;
}

function figures(now) {
  const { requests, saved, store } = now;
  const recent = grown((poll) => lookedUp(poll.requests));
  const [total, found] = recent
    ? [recent, grown((poll) => hits(poll.requests))]
    : [lookedUp(requests), hits(requests)];
  const over = recent ? `of the last ${seconds(covered())}` : "since the start";
  const ways = Object.entries(saved);
  const all = (unit, left = []) => ways.reduce((value, [way, units]) => value + (left.includes(way) ? 0 : units[unit] ?? 0), 0);
  const every = Object.values(requests).reduce((value, number) => value + number, 0);
  return [
    tile("Hit ratio", total ? share(found / total) : "–", over),
    tile("Requests per second", rate(rates((poll) => sum(poll.requests, Object.keys(poll.requests))).at(-1)), `${brief(every)} since the start`),
    // What an upstream finds in its own prefix cache, it finds without this gateway, too.
    tile("Money saved", all("tokens", ["prefix"]) && !all("dollars", ["prefix"]) ? "–" : dollars(all("dollars", ["prefix"])),
      saved.prefix?.dollars ? `upstreams' own caches: ${dollars(saved.prefix.dollars)} more` : all("tokens", ["prefix"]) && !all("dollars", ["prefix"]) ? "no known price" : "since the start"),
    tile("Tokens saved", brief(all("tokens", ["prefix"])), saved.prefix?.tokens ? `upstreams' own caches: ${brief(saved.prefix.tokens)} cheaper` : "since the start"),
    tile("Waiting saved", seconds(all("seconds")), "since the start"),
    tile("Entries", brief(store.entries ?? 0), now.ready.store?.problem ? "when the store last answered" : bytes(store.entry_bytes ?? 0)),
  ];
}

const tile = (name, value, note) =>
  h("div", { class: "tile card" }, h("h2", {}, name), h("p", { class: "value" }, value), h("p", { class: "hint" }, note));

function upstreams(now) {
  const states = now.ready.upstreams;
  if (!states) {
    return h("section", { class: "block" }, h("h2", {}, "Upstream"),
      facts([["Name", now.upstreams.join(", ")], ["Calls under way", count(now.calls)]]));
  }
  const rows = now.upstreams.map((name) => [name, states[name]]);
  const whose = now.workers > 1 ? ", as the worker that answers sees them" : "";
  return table(`Upstreams${whose}`, [
    { name: "Upstream", cell: ([name, one]) => (one?.role ? `${name} (${one.role})` : name) },
    { name: "State", cell: ([, one]) => badge(one?.state ?? "unknown", one?.state === "up") },
    { name: "Why", cell: ([, one]) => one?.why ?? "" },
    { name: "Calls under way", number: true, cell: ([, one]) => count(one?.in_flight ?? 0) },
  ], rows);
}

const badge = (text, good) => h("span", { class: `badge small ${good ? "good" : "bad"}` }, text);

function engines(now) {
  const rows = Object.entries(now.engines);
  if (!rows.length) return null;
  return table("Engines", [
    { name: "Upstream", cell: ([name]) => name },
    { name: "Running", number: true, cell: ([, engine]) => count(engine.running) },
    { name: "Waiting", number: true, cell: ([, engine]) => count(engine.waiting) },
    { name: "KV in use", number: true, cell: ([, engine]) => share(engine.kv_use) },
  ], rows);
}

function rules(now) {
  const budgets = now.budgets.rules ?? {};
  const names = [...new Set([...Object.keys(now.rules), ...Object.keys(budgets)])].filter(Boolean).sort();
  return table("Rules", [
    { name: "Rule", cell: (name) => name },
    { name: "Requests", number: true, cell: (name) => count(Object.values(now.rules[name] ?? {}).reduce((a, b) => a + b, 0)) },
    { name: "Hit ratio", number: true, cell: (name) => ratio(now.rules[name]) },
    { name: "Semantic hits", number: true, cell: (name) => count(now.rules[name]?.semantic ?? 0) },
    { name: "Compared", number: true, cell: (name) => (budgets[name] ? count(budgets[name].comparisons) : "–") },
    { name: "Wrong of those", number: true, cell: (name) => (budgets[name] ? share(budgets[name].wrong_hits) : "–") },
    { name: "Error budget used", cell: (name) => (budgets[name] ? budget(budgets[name]) : "not compared") },
  ], names, "No request yet.");
}

function ratio(requests) {
  const of = lookedUp(requests ?? {});
  return of ? share(hits(requests) / of) : "–";
}

function budget(figures) {
  if (figures.off) return badge("off: too many were wrong", false);
  if (figures.wrong_hits === null) return `0 of ${share(figures.budget)}`;
  const used = figures.budget ? figures.wrong_hits / figures.budget : 0;
  const text = `${share(used)} of ${share(figures.budget)}`;
  return [h("meter", { min: 0, max: 1, high: 0.8, optimum: 0, value: Math.min(used, 1), "aria-label": text }), ` ${text}`];
}

function errors(now) {
  const rows = Object.entries(now.errors).filter(([, number]) => number).sort((one, other) => other[1] - one[1]);
  const left = now.requests.left ?? 0;
  return h("section", {}, table("Errors and refused requests since the start", [
    { name: "Reason", cell: ([reason]) => reason },
    { name: "Requests", number: true, cell: ([, number]) => count(number) },
  ], rows, "None."), left ? h("p", { class: "hint" }, `Clients left before the end of ${count(left)} more.`) : null);
}
