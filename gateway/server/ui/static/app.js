// The frame: navigation, one view at a time, and the end of a session.

import { hasSession, logOut } from "./api.js";
import { fill, h } from "./dom.js";
import { start } from "./history.js";
import { entries } from "./views/entries.js";
import { events } from "./views/events.js";
import { explain } from "./views/explain.js";
import { keys } from "./views/keys.js";
import { overview } from "./views/overview.js";
import { policy } from "./views/policy.js";
import { quality } from "./views/quality.js";
import { usage } from "./views/usage.js";

/** A view fills the element it gets; it may return a function that ends it. */
const VIEWS = {
  overview: ["Overview", overview],
  events: ["Events", events],
  entries: ["Entries", entries],
  explain: ["Explain", explain],
  policy: ["Policy", policy],
  quality: ["Quality", quality],
  usage: ["Usage", usage],
  keys: ["Keys", keys],
};

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let end = null;

function show() {
  const [, name, ...rest] = location.hash.split("/");
  const [title, view] = VIEWS[name] ?? VIEWS.overview;
  end?.();
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.textContent === title;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  document.title = `${title} · Refrain`;
  const place = h("div", { class: "view" });
  fill(main, h("h1", {}, title), place);
  end = view(place, rest.map(decodeURIComponent)) ?? null;
}

fill(document.getElementById("nav"), Object.entries(VIEWS).map(([name, [title]]) =>
  h("li", {}, h("a", { href: `#/${name}` }, title))));
window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener("refrain:ended", () => {
  banner.hidden = false;
  fill(banner, "Your session has ended. ", h("a", { href: "/ui" }, "Log in again"));
});
const logout = document.getElementById("logout");
logout.hidden = !hasSession;
logout.addEventListener("click", logOut);
show();
start();
