// What would become of a request, and why. Nothing is forwarded, stored or logged.

import { post } from "../api.js";
import { count, facts, fill, h, labelled, run, table } from "../dom.js";

const EXAMPLE = JSON.stringify({ model: "gpt-4o", messages: [{ role: "user", content: "How do I reset my password?" }] }, null, 2);

export function explain(place) {
  const input = h("textarea", { class: "code", rows: 12, spellcheck: "false" });
  input.value = EXAMPLE;
  const key = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const holder = h("input", { autocomplete: "off", spellcheck: "false" });
  const button = h("button", { type: "submit" }, "Explain");
  const problem = h("div");
  const found = h("div", { class: "tables", "aria-live": "polite" });
  const form = h("form", { class: "card" },
    labelled("Request", input, "A request's body, or {\"endpoint\": …, \"headers\": {…}, \"body\": {…}}."),
    h("div", { class: "fields" },
      labelled("Client's API key", key, "Each key has its own entries. Without one, the client is anonymous. The key is neither stored nor logged."),
      labelled("Or the holder of a gateway key", holder, "A name in the list of keys")),
    h("div", { class: "actions" }, button), problem);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(button, problem, async () => {
      fill(found);
      fill(found, shown(await post("explain", asked(input.value, key.value.trim(), holder.value.trim()))));
    });
  });
  fill(place, form, found);
}

/** Put the client around a body as text: a number in it stays as it was written. */
function asked(text, key, holder) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The request is not JSON: ${error.message}`);
  }
  if (!key && !holder) return text;
  if (value?.body || value?.request) throw new Error("The request names its client itself: leave key and holder empty, or give the body alone.");
  const client = holder ? { holder } : { headers: { authorization: `Bearer ${key}` } };
  return `${JSON.stringify(client).slice(0, -1)}, "body": ${text}}`;
}

function shown(report) {
  const { outcome, decision, rules, pii, semantic, lookup, identity, nearest, rewrite, hints } = report;
  return [
    h("section", { class: "block" }, h("h2", {}, "Outcome"),
      h("p", { class: `badge ${outcome.would === "hit" ? "good" : "bad"}` }, outcome.would),
      facts([
        ...(outcome.message ? [["Message", outcome.message]] : []),
        ...(outcome.reason ? [["Reason", outcome.reason]] : []),
        ...(outcome.cache_status ? [["Cache-Status", h("code", {}, outcome.cache_status)]] : []),
        ...(report.request ? [["Tenant", report.request.tenant ?? "unknown"], ["Endpoint", report.request.endpoint]] : []),
        ...(report.prompt_tokens === undefined ? [] : [["Prompt tokens, estimated", count(report.prompt_tokens)]]),
        ...(identity ? [["Key", h("code", {}, identity.key)], ["Scope", h("code", {}, identity.scope)]] : []),
        ...(outcome.entry ? [["Entry", h("a", { href: `#/entries/${outcome.entry.key ?? identity?.key}` }, "Show the entry")]] : []),
      ])),
    lookup && table("Lookup", [{ name: "Step", cell: (step) => step.step }, { name: "Result", cell: (step) => step.result }], lookup),
    rules && table("Rules, in order", [
      { name: "Rule", cell: (rule) => rule.rule },
      { name: "Matches", cell: (rule) => (rule.failed.length ? "no" : "yes") },
      { name: "Because", cell: (rule) => rule.failed.map(failure).join("; ") },
    ], rules, "The policy has no rules: its default decides."),
    decision && h("section", { class: "block" }, h("h2", {}, `Settings of ${decision.rule}`),
      facts(Object.entries(decision.settings).map(([name, value]) => [name, setting(value)]))),
    pii && (pii.scanned
      ? table("Personal data", [
        { name: "Kind", cell: (finding) => finding.kind },
        { name: "Where", cell: (finding) => finding.where },
        { name: "Characters", cell: (finding) => (finding.start === undefined || finding.start === null ? "" : `${finding.start} to ${finding.end}`) },
      ], pii.findings, "None found.")
      : h("section", { class: "block" }, h("h2", {}, "Personal data"), h("p", {}, "The rule does not scan for it."))),
    semantic && h("section", { class: "block" }, h("h2", {}, "Semantic lookup"),
      h("p", {}, semantic.eligible ? "The question may be answered by meaning." : `Not eligible (${semantic.reason}): ${semantic.why_not}.`)),
    nearest && near(nearest),
    diff("Rewrite", rewrite), diff("Hints", hints),
    h("details", { class: "block" }, h("summary", {}, "The whole explanation as JSON"), h("pre", {}, JSON.stringify(report, null, 2))),
  ];
}

function near({ entry, differences, of_this_scope: compared }) {
  if (!entry) return h("section", { class: "block" }, h("h2", {}, "Nearest entry"), h("p", {}, compared
    ? `None: ${count(compared)} entries of this client were compared.`
    : "None: this client has no entry that could be compared. Is its key given above?"));
  return [
    table("How the nearest entry differs", [
      { name: "Field", cell: (each) => each.field },
      { name: "How", cell: (each) => each.how },
    ], differences ?? []),
    h("p", { class: "hint" }, "The entry is ", h("a", { href: `#/entries/${entry.key}` }, entry.key.slice(0, 10)), ` of rule ${entry.rule}.`),
  ];
}

const failure = (failed) => `${failed.key} wants ${failed.wanted.join(" or ")}${failed.got ? `, got ${failed.got}` : ""}`;

const setting = (value) =>
  Array.isArray(value) ? value.join(", ") || "none"
    : value && typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}: ${setting(one)}`).join(", ")
      : String(value);

function diff(title, changed) {
  if (!changed || !(changed.changes.length || changed.declined.length)) return null;
  return h("section", { class: "block" }, h("h2", {}, title),
    facts([["Changes", changed.changes.join(", ") || "none"],
      ["Not done", changed.declined.map((one) => `${one.rewrite}: ${one.why}`).join(", ") || "none"]]),
    changed.diff.length ? h("pre", {}, JSON.stringify(changed.diff, null, 2)) : null);
}
