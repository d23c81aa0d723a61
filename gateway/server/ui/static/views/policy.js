// The policy in force, and an editor: check, replay on the decision log, then save.

import { get, post } from "../api.js";
import { count, facts, fill, h, labelled, run, table } from "../dom.js";

export function policy(place) {
  const head = h("div", { class: "block" }, h("p", { class: "hint" }, "Loading …"));
  const editor = h("textarea", { class: "code", rows: 24, spellcheck: "false" });
  const check = h("button", { type: "button", class: "quiet" }, "Check");
  const replay = h("button", { type: "button", class: "quiet" }, "Replay on the decision log");
  const save = h("button", { type: "button" }, "Save");
  const reload = h("button", { type: "button", class: "quiet" }, "Discard changes");
  const notes = h("p", { class: "hint" });
  const problem = h("div");
  const found = h("div", { class: "tables", "aria-live": "polite" });
  let seen = null;
  let replayed = null; // the text that was replayed last
  let gone = false;

  const form = h("section", { class: "card" }, labelled("Policy", editor), h("div", { class: "actions" }, check, replay, save, reload), notes, problem);
  fill(place, head, form, found);

  async function load(keep = false) {
    seen = await get("policy");
    if (gone) return;
    if (!keep) editor.value = seen.text;
    fill(head, h("p", { class: `badge ${seen.problem ? "bad" : "good"}` }, seen.problem ? "The file is refused: the last good policy is in force" : seen.in_force ? "In force" : "Being taken into force"),
      seen.problem ? h("p", { class: "problem" }, seen.problem) : null,
      facts([["File", seen.source], ["Generation", count(seen.generation)], ["SHA-256", h("code", {}, seen.sha256.slice(0, 16))]]));
    editor.readOnly = seen.read_only !== null;
    update();
  }

  function update() {
    const changed = seen !== null && editor.value !== seen.text.replaceAll("\r\n", "\n");
    save.disabled = !changed || seen.read_only !== null || (seen.decision_log !== null && replayed !== editor.value);
    reload.disabled = !changed;
    replay.disabled = seen === null || seen.decision_log === null;
    fill(notes, seen?.read_only ?? (seen?.decision_log === null
      ? "There is no decision log, so an edit cannot be replayed. With decision_log: FILE, the page shows what an edit would change before it saves."
      : changed && save.disabled ? "Replay the edit first: then it can be saved." : ""));
  }
  editor.addEventListener("input", update);

  check.addEventListener("click", () => run(check, problem, async () => fill(found, checked(await post("policy/check", { text: editor.value }), editor))));
  replay.addEventListener("click", async () => {
    await run(replay, problem, async () => {
      const text = editor.value;
      const result = await post("policy/check", { text });
      fill(found, checked(result, editor));
      if (!result.valid) return;
      replayed = text; // also where the replay fails: the operator has seen why
      fill(found, replayReport(await post("policy/replay", { text })));
    });
    update();
  });
  save.addEventListener("click", async () => {
    await run(save, problem, async () => {
      const saved = await post("policy", { text: editor.value, sha256: seen.sha256 });
      fill(found, h("p", { class: "done", role: "status" }, "Saved. It takes effect within a second."));
      await load(true);
      for (let tries = 0; tries < 10 && !gone && seen.sha256 === saved.sha256 && !seen.in_force && !seen.problem; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve, 500));
        await load(true);
      }
      if (seen.in_force) fill(found, h("p", { class: "done", role: "status" }, "Saved, and in force."));
    });
    update();
  });
  reload.addEventListener("click", async () => {
    await run(reload, problem, () => load());
    fill(found);
    update();
  });
  run(check, problem, () => load()).then(update);
  return () => (gone = true);
}

function checked(result, editor) {
  if (result.valid) {
    return h("p", { class: "done", role: "status" }, `Valid: ${count(result.rules.length)} rules and the default, generation ${count(result.generation)}.`);
  }
  const go = (line) => {
    const lines = editor.value.split("\n");
    const from = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    editor.focus();
    editor.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
    editor.scrollTop = (editor.scrollHeight / lines.length) * Math.max(0, line - 5);
  };
  return table("Problems", [
    { name: "Line", cell: (each) => h("button", { type: "button", class: "link", onclick: () => go(each.line) }, `Line ${each.line}`) },
    { name: "Key", cell: (each) => each.key },
    { name: "Problem", cell: (each) => each.message },
  ], result.problems);
}

function replayReport(report) {
  const { before, after } = report;
  const lines = [
    ["Hits", before.hits, after.hits], ["Tokens saved", before.tokens, after.tokens],
    ["Not looked up", before.bypasses, after.bypasses], ["Distinct entries", report.entries_before, report.entries_after],
  ];
  const moved = report.moved.filter((each) => each.from !== each.to).sort((one, other) => other.requests - one.requests);
  const notes = [
    report.unknown && `${count(report.unknown)} requests cannot be told: a rule depends on what the log does not hold. They count as recorded.`,
    report.unjudged && `${count(report.unjudged)} semantic hits are of another calibration. They count as recorded.`,
    report.skipped_lines && `${count(report.skipped_lines)} lines of the log are no records.`,
  ].filter(Boolean);
  return [
    table(`What the edit would have changed for ${count(report.requests)} recorded requests`, [
      { name: "Simulated", cell: ([name]) => name },
      { name: "Recorded policy", number: true, cell: ([, was]) => count(was) },
      { name: "Edit", number: true, cell: ([, , would]) => count(would) },
      { name: "Change", number: true, cell: ([, was, would]) => (would > was ? "+" : "") + count(would - was) },
    ], lines),
    h("p", { class: "hint" }, `Hits gained: ${count(report.gained)}. Hits lost: ${count(report.lost)}. `, notes.join(" ")),
    moved.length ? table("Requests that another rule would decide", [
      { name: "From", cell: (each) => each.from }, { name: "To", cell: (each) => each.to },
      { name: "Requests", number: true, cell: (each) => count(each.requests) },
    ], moved) : null,
    table("Rules of the edit", [
      { name: "Rule", cell: ([name]) => name },
      { name: "Requests", number: true, cell: ([, tally]) => count(tally.requests) },
      { name: "Hits", number: true, cell: ([, tally]) => count(tally.hits) },
      { name: "Tokens saved", number: true, cell: ([, tally]) => count(tally.tokens) },
    ], Object.entries(report.rules)),
  ];
}
