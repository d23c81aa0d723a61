// What was used and saved, by holder, team, model, rule, upstream or day; prefix caches of upstreams.

import { get } from "../api.js";
import { brief, count, dollars, fill, h, labelled, run, seconds, share, table } from "../dom.js";

const GROUPS = { model: "Model", holder: "Holder", team: "Team", rule: "Rule", upstream: "Upstream", day: "Day" };
const SINCE = { "1d": "Today", "7d": "7 days", "30d": "30 days", "365d": "365 days" };
const WAYS = { exact: "Exact hits", semantic: "Semantic hits", coalescing: "Shared calls", compression: "Compression" };
// Upstreams have them without this gateway, too.
const OTHERS = { prefix: "Upstreams' own prefix caches" };

export function usage(place) {
  const options = (values) => Object.entries(values).map(([value, text]) => h("option", { value, selected: value === "30d" }, text));
  const by = h("select", {}, options(GROUPS));
  const since = h("select", {}, options(SINCE));
  const button = h("button", { type: "submit" }, "Show");
  const problem = h("div");
  const found = h("div", { class: "tables", "aria-live": "polite" });
  const show = () => run(button, problem, async () => {
    const [report, prefixes] = await Promise.all([get("usage", { by: by.value, since: since.value }), get("prefix-hits")]);
    fill(found, rows(report), ways(report.total), routes(prefixes.routes));
  });
  const form = h("form", { class: "card", onsubmit: (event) => (event.preventDefault(), show()) },
    h("div", { class: "fields" }, labelled("By", by), labelled("Since", since)), h("div", { class: "actions" }, button), problem);
  by.addEventListener("change", show);
  since.addEventListener("change", show);
  fill(place, form, found);
  show();
}

const hits = (row) => ["exact", "semantic", "coalescing"].reduce((sum, way) => sum + row.saved[way].requests, 0);
const none = { upstream: "no call", holder: "no gateway key", team: "no team" };

function rows({ by, rows: all, total, since }) {
  return table(`Used and saved since ${since}`, [
    { name: GROUPS[by], cell: (row) => (row === total ? "All" : row[by] || none[by] || "none") },
    { name: "Requests", number: true, cell: (row) => count(row.requests) },
    { name: "Hits", number: true, cell: (row) => (row.requests ? share(hits(row) / row.requests) : "–") },
    { name: "Errors", number: true, cell: (row) => count(row.errors) },
    { name: "Tokens used", number: true, cell: (row) => brief(row.prompt_tokens + row.completion_tokens) },
    { name: "Spent", number: true, cell: (row) => dollars(row.dollars) },
    { name: "Tokens saved", number: true, cell: (row) => brief(row.saved_total.tokens) },
    { name: "Saved", number: true, cell: (row) => dollars(row.saved_total.dollars) },
    { name: "Waiting saved", number: true, cell: (row) => seconds(row.saved_total.seconds) },
  ], all.length ? [...all.slice(0, 200), total] : [], "Nothing was counted.");
}

function ways(total) {
  const unpriced = total.unpriced_tokens + total.saved_total.unpriced_tokens;
  return [
    table("Saved, by way", [
      { name: "Way", cell: ([way]) => WAYS[way] ?? way },
      { name: "Requests", number: true, cell: ([, part]) => count(part.requests) },
      { name: "Tokens", number: true, cell: ([, part]) => brief(part.tokens) },
      { name: "Money", number: true, cell: ([, part]) => (part.requests ? dollars(part.dollars) : "–") },
      { name: "Waiting", number: true, cell: ([, part]) => seconds(part.seconds) },
    ], Object.entries(total.saved).filter(([way]) => !(way in OTHERS))),
    table("Cheaper at the upstreams, not part of saved", [
      { name: "By", cell: ([way]) => OTHERS[way] },
      { name: "Requests", number: true, cell: ([, part]) => count(part.requests) },
      { name: "Tokens", number: true, cell: ([, part]) => brief(part.tokens) },
      { name: "Money", number: true, cell: ([, part]) => (part.requests ? dollars(part.dollars) : "–") },
    ], Object.entries(total.saved).filter(([way, part]) => way in OTHERS && part.requests), "Nothing."),
    unpriced ? h("p", { class: "hint" }, `${count(unpriced)} of these tokens have no known price. Money leaves them out.`) : null,
  ];
}

function routes(all) {
  return table("Prefix caches of upstreams, of this worker since its start", [
    { name: "Rule", cell: (route) => route.rule },
    { name: "Model", cell: (route) => route.model },
    { name: "Calls", number: true, cell: (route) => count(route.calls) },
    { name: "Prompt tokens", number: true, cell: (route) => brief(route.prompt_tokens) },
    { name: "Found", number: true, cell: (route) => brief(route.cached_tokens) },
    { name: "Share", number: true, cell: (route) => share(route.share) },
    { name: "Hints", cell: (route) => (route.hints_never_hit ? "never hit" : route.hinted_calls ? "hit" : "none") },
  ], all, "No upstream has reported figures of its prefix cache.");
}
