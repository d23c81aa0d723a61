// How often semantic hits are wrong: figures by rule, and the comparisons to judge by hand.

import { get, post } from "../api.js";
import { count, dialog, fill, h, labelled, run, share, table, utc, utcText } from "../dom.js";

const SHOWN = { open: "Different or unsure", "": "All", different: "Different", unsure: "Unsure", equal: "The same" };

export function quality(place) {
  const problem = h("div");
  const rules = h("div", { class: "tables" });
  const outcome = h("select", {}, Object.entries(SHOWN).map(([value, text]) => h("option", { value }, text)));
  const list = h("div", { class: "tables", "aria-live": "polite" });
  let all = [];
  fill(place, problem, rules, h("div", { class: "card narrow" }, labelled("Comparisons with this outcome", outcome)), list);
  outcome.addEventListener("change", show);

  const load = () => run(h("button"), problem, async () => {
    const [report, latest] = await Promise.all([get("semantic"), get("comparisons")]);
    all = latest.comparisons;
    fill(rules, report.unlike ? h("p", { class: "problem" }, report.unlike) : null, byRule(report));
    show();
  });

  function byRule(report) {
    return table("Semantic hits compared with fresh answers", [
      { name: "Rule", cell: ([rule]) => rule },
      { name: "Compared", number: true, cell: ([, one]) => count(one.comparisons) },
      { name: "Same", number: true, cell: ([, one]) => count(one.equal) },
      { name: "Different", number: true, cell: ([, one]) => count(one.different) },
      { name: "Unsure", number: true, cell: ([, one]) => count(one.unsure) },
      { name: "Wrong", number: true, cell: ([, one]) => share(one.wrong_hits) },
      { name: "Between", number: true, cell: ([, one]) => (one.comparisons ? one.interval.map(share).join(" and ") : "–") },
      { name: "Budget", number: true, cell: ([, one]) => share(one.budget) },
      { name: "Advice", cell: ([rule, one]) => [one.next, one.off ? reset(rule) : null] },
    ], Object.entries(report.rules), "Nothing was compared yet. With shadow: on or sample: 1% under semantic, a rule compares.");
  }

  function reset(rule) {
    const button = h("button", { type: "button", class: "quiet" }, "Switch on again …");
    button.addEventListener("click", () => {
      const failed = h("div");
      const sure = h("button", { type: "button", class: "danger" }, "Switch semantic hits on");
      const box = dialog(`Semantic hits of ${rule}`, h("p", {}, "Too many were wrong. Look at the different ones first. The counts begin anew."),
        h("div", { class: "actions" }, sure), failed);
      sure.addEventListener("click", () => run(sure, failed, async () => {
        await post("semantic/reset", { rule });
        box.close();
        await load();
      }));
    });
    return h("div", {}, button);
  }

  function show() {
    const chosen = all.filter((one) => (outcome.value === "open" ? one.outcome !== "equal" : !outcome.value || one.outcome === outcome.value));
    fill(list, table("Latest comparisons", [
      { name: "Time", cell: (one) => utc(one.time) },
      { name: "Rule", cell: (one) => one.rule },
      { name: "Kind", cell: (one) => one.kind },
      { name: "Outcome", cell: (one) => one.outcome },
      { name: "Why", cell: (one) => one.why },
      { name: "Similarity", number: true, cell: (one) => one.similarity.toFixed(3) },
      { name: "Score", number: true, cell: (one) => one.score.toFixed(3) },
      { name: "Judged", cell: (one) => (one.judged_same === null ? "" : one.judged_same ? "right" : "wrong") },
      { name: "Answers", cell: (one) => h("button", { type: "button", class: "link", "aria-label": `Judge the comparison of ${utcText(one.time)}`, onclick: () => judge(one) }, "Judge") },
    ], chosen, "No comparison."));
  }

  async function judge(one) {
    const answers = h("div", { class: "charts" });
    const failed = h("div");
    const wrong = h("button", { type: "button", class: "danger" }, "The hit is wrong");
    const right = h("button", { type: "button", class: "quiet" }, "The hit is right");
    const box = dialog("Two answers", h("p", { class: "hint" }, "This look is in the audit log. What you say counts at the next refrain semantic calibrate."),
      answers, h("div", { class: "actions" }, right, wrong), failed);
    const say = (button, same, message, act = async () => {}) => button.addEventListener("click", () => run(button, failed, async () => {
      await act();  // first: the judgement matters only to the next calibration
      await post("semantic/judge", { entry: one.entry, key: one.key, time: one.time, same });
      box.close();
      await load();
      fill(problem, h("p", { class: "done", role: "status" }, message));
    }));
    say(right, true, "Noted: the next calibration counts this hit as right.");
    say(wrong, false, "The entry was evicted, and semantic lookup does not find its key for a year.", () => post("wrong", { entry: one.entry }));
    const [found, fresh] = await Promise.all([one.entry, one.key].map((key) => get(`entries/${key}`, { answer: 1 }).catch((error) => error)));
    fill(answers, side("Found by meaning", found), side("Fresh answer", fresh));
  }
  load();
}

function side(title, entry) {
  return h("section", {}, h("h3", {}, title), entry instanceof Error
    ? h("p", { class: "hint" }, `Not stored any more: ${entry.message}`)
    : [h("p", { class: "hint" }, entry.question ?? "The question is not stored."), h("pre", {}, answerText(entry.answer))]);
}

/** The text in a stored answer of any endpoint. */
export function answerText(answer) {
  const parts = answer.choices?.map((choice) => choice.message?.content ?? choice.text)
    ?? answer.content?.map((block) => block.text)
    ?? answer.output?.flatMap((item) => item.content ?? []).map((part) => part.text);
  return parts?.filter((part) => typeof part === "string").join("\n\n") || "No text: see the JSON.";
}
