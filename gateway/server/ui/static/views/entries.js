// Stored answers: search, look at one, purge, report a wrong hit.

import { get, post } from "../api.js";
import { bytes, count, dialog, facts, fill, h, hash, labelled, run, seconds, table, utc } from "../dom.js";
import { answerText } from "./quality.js";

const FIELDS = [
  ["rule", "Rule", "A rule's name"],
  ["model", "Model", "A glob, such as gpt-*"],
  ["tag", "Tag", "One tag of the policy"],
  ["scope", "Scope", "64 hex digits"],
  ["key", "Key", "The reply header Refrain-Entry of a hit"],
];

export function entries(place, [key]) {
  const inputs = Object.fromEntries(FIELDS.map(([name]) => [name, h("input", { name, autocomplete: "off", spellcheck: "false" })]));
  if (key) inputs.key.value = key;
  const problem = h("div");
  const found = h("div", { class: "tables", "aria-live": "polite" });
  const search = h("button", { type: "submit" }, "Search");
  const purge = h("button", { type: "button", class: "quiet" }, "Purge these …");
  const form = h("form", { class: "card", onsubmit: (event) => (event.preventDefault(), run(search, problem, () => list(null))) },
    h("div", { class: "fields" }, FIELDS.map(([name, text, hint]) => labelled(text, inputs[name], hint))),
    h("div", { class: "actions" }, search, purge), problem);
  const selection = () => Object.fromEntries(FIELDS.map(([name]) => [name, inputs[name].value.trim()]).filter(([, value]) => value));

  async function list(after) {
    const page = await get("entries", { ...selection(), limit: 50, after });
    const next = page.after && h("button", { type: "button", class: "quiet", onclick: () => run(next, problem, () => list(page.after)) }, "Next page");
    const first = after && h("button", { type: "button", class: "quiet", onclick: () => run(first, problem, () => list(null)) }, "First page");
    fill(found, table("Entries", [
      { name: "Key", cell: (entry) => h("button", { type: "button", class: "link", "aria-label": `Open entry ${entry.key.slice(0, 10)}`, onclick: () => open(entry) }, hash(entry.key)) },
      { name: "Rule", cell: (entry) => entry.rule },
      { name: "Model", cell: (entry) => entry.model },
      { name: "Age", number: true, cell: (entry) => seconds(entry.age) },
      { name: "Fresh for", number: true, cell: freshFor },
      ...(page.entries.some((entry) => entry.hits !== null) ? [{ name: "Hits", number: true, cell: (entry) => count(entry.hits) }] : []),
      { name: "By meaning", cell: (entry) => (entry.semantic ? "yes" : "no") },
      { name: "Tokens", number: true, cell: (entry) => count(entry.tokens) },
      { name: "Size", number: true, cell: (entry) => bytes(entry.bytes) },
    ], page.entries, "No entry matches."), h("div", { class: "actions" }, first, next));
  }

  function open(entry) {
    const result = h("div", { "aria-live": "polite" });
    const look = h("button", { type: "button" }, "Show question and answer");
    const wrong = h("button", { type: "button", class: "quiet" }, "Report as wrong …");
    const drop = h("button", { type: "button", class: "quiet" }, "Purge …");
    look.addEventListener("click", () => run(look, result, async () => fill(result, text(await get(`entries/${entry.key}`, { answer: 1 })))));
    wrong.addEventListener("click", () => fill(result, report(entry, done)));
    drop.addEventListener("click", () => run(drop, result, async () => fill(result, await confirm({ key: entry.key }, done))));
    const box = dialog("Entry",
      facts([
        ["Key", h("code", {}, entry.key)], ["Scope", h("code", {}, entry.scope)], ["Endpoint", entry.endpoint],
        ["Model", entry.model], ["Upstream", entry.upstream], ["Stored by rule", entry.rule],
        ["Tags", entry.tags.join(", ") || "none"], ["Policy generation", count(entry.generation)],
        ["Stored at", [utc(entry.stored_at), ` (${seconds(entry.age)} ago)`]], ["Fresh until", [utc(entry.expires_at), ` (${freshFor(entry)})`]],
        ...(entry.hits === null ? [] : [["Hits since the start", count(entry.hits)]]),
        ["A hit saves", `${count(entry.tokens)} tokens`], ["Found by meaning", entry.semantic ? "yes" : "no"], ["Size", bytes(entry.bytes)],
      ]),
      h("div", { class: "actions" }, look, wrong, drop), h("p", { class: "hint" }, "Each look at a question and its answer is in the audit log."), result);
    function done(message) {
      box.close();
      fill(problem, h("p", { class: "done", role: "status" }, message));
      run(search, h("div"), () => list(null));
    }
  }

  purge.addEventListener("click", () => run(purge, problem, async () => {
    const chosen = selection();
    const box = dialog("Purge", await confirm(Object.keys(chosen).length ? chosen : { all: true }, (message) => {
      box.close();
      fill(problem, h("p", { class: "done", role: "status" }, message));
      run(search, h("div"), () => list(null));
    }));
  }));

  fill(place, form, found);
  run(search, problem, () => list(null));
}

const freshFor = (entry) => (entry.ttl > 0 ? seconds(entry.ttl) : `stale by ${seconds(-entry.ttl)}`);

/** Count first, and purge after a second click. */
async function confirm(selection, done) {
  const found = await post("purge", selection);
  if (!found.entries) return h("p", {}, "No entry matches: nothing to purge.");
  const failed = h("div");
  const button = h("button", { type: "button", class: "danger" }, `Purge ${count(found.entries)} ${found.entries === 1 ? "entry" : "entries"}`);
  button.addEventListener("click", () => run(button, failed, async () => {
    const gone = await post("purge", { ...selection, dry_run: false });
    done(`${count(gone.entries)} ${gone.entries === 1 ? "entry" : "entries"} purged.`);
  }));
  return [
    h("p", {}, selection.all ? "All entries of this gateway are selected. " : "",
      `${count(found.entries)} ${found.entries === 1 ? "entry" : "entries"}, ${bytes(found.bytes)}, would have saved up to ${count(found.tokens)} tokens a hit each.`),
    h("div", { class: "actions" }, button), failed,
  ];
}

function report(entry, done) {
  const question = h("textarea", { rows: 3 });
  const failed = h("div");
  const button = h("button", { type: "button", class: "danger" }, "Report as wrong");
  button.addEventListener("click", () => run(button, failed, async () => {
    const asked = question.value.trim();
    await post("wrong", { entry: entry.key, ...(asked && { question: asked }) });
    done("The entry was evicted, and semantic lookup does not find its key for a year.");
  }));
  return [labelled("What was asked (optional)", question, "The pair of questions is kept in wrong-hits.jsonl, for your own tests."),
    h("div", { class: "actions" }, button), failed];
}

function text(entry) {
  return [h("h3", {}, "Question"), h("pre", {}, entry.question ?? "Not stored: the entry is only found by the whole request."),
    h("h3", {}, "Answer"), h("pre", {}, answerText(entry.answer)),
    h("details", {}, h("summary", {}, "The answer as JSON"), h("pre", {}, JSON.stringify(entry.answer, null, 2)))];
}
