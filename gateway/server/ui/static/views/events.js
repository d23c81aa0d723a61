// What changed the gateway's state, and when: for whoever asks "what happened at 02:13?".

import { get } from "../api.js";
import { count, fill, h, labelled, run, table, utc } from "../dom.js";

const EVERY = 5000;
const KINDS = {
  gateway: "Start and stop", process: "Process", store: "Store", upstream: "Upstream", policy: "Policy",
  keys: "Keys", rule: "Rule switched off", calibration: "Calibration", log: "Log file", task: "Background work", operator: "Operator",
};

export function events(place) {
  const problem = h("div");
  const kind = h("select", {}, h("option", { value: "" }, "All"), Object.entries(KINDS).map(([value, text]) => h("option", { value }, text)));
  const list = h("div", { class: "tables" });
  let all = [];
  let timer = null;
  let gone = false;
  fill(place, h("div", { class: "card narrow" }, labelled("Events about", kind)), problem, list);
  kind.addEventListener("change", show);

  async function load() {
    await run(h("button"), problem, async () => {
      const latest = (await get("events")).events;
      if (!gone && JSON.stringify(latest) !== JSON.stringify(all)) {
        all = latest;
        show();
      }
    });
    if (!gone) timer = setTimeout(() => (document.hidden ? later() : load()), EVERY);
  }
  const later = () => (timer = setTimeout(load, EVERY));

  function show() {
    const focused = document.activeElement?.getAttribute("aria-label");
    fill(list, eventTable("Latest events", all.filter((one) => !kind.value || one.event === kind.value)));
    if (focused) [...list.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
  }
  show();
  load();
  return () => {
    gone = true;
    clearTimeout(timer);
  };
}

/** Make a table of events, the newest first. */
export function eventTable(caption, rows) {
  return table(caption, [
    { name: "Time", cell: (one) => utc(one.time) },
    { name: "About", cell: (one) => KINDS[one.event] ?? one.event },
    { name: "What happened", cell: (one) => [one.level === "info" ? null : h("span", { class: "badge small bad" }, one.level), " ", one.text, again(one)] },
  ], rows, "Nothing has happened yet.", true);
}

const again = (one) => (one.times > 1 ? h("span", { class: "hint" }, ` (seen ${count(one.times)} times, last at ${new Date(one.until * 1000).toISOString().slice(11, 19)})`) : null);
