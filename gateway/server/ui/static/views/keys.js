// Gateway keys without their secrets.

import { get } from "../api.js";
import { fill, h, run, table } from "../dom.js";

export function keys(place) {
  const problem = h("div");
  const found = h("div", { class: "tables" });
  fill(place, problem, found);
  run(h("button"), problem, async () => {
    const { keys: all } = await get("keys");
    const attributes = [...new Set(all.flatMap((key) => Object.keys(key)))].filter((name) => !["name", "key", "state"].includes(name));
    fill(found, table("Gateway keys", [
      { name: "Holder", cell: (key) => key.name },
      { name: "SHA-256 begins with", cell: (key) => h("code", {}, key.key) },
      { name: "State", cell: (key) => h("span", { class: `badge small ${key.state === "valid" ? "good" : "bad"}` }, key.state) },
      ...attributes.map((name) => ({ name, cell: (key) => key[name] ?? "" })),
    ], all, "This gateway has no gateway keys: upstreams check the clients' keys."),
    h("p", { class: "hint" }, "Keys are made and revoked with the command refrain keys. ", h("a", { href: "#/usage" }, "Usage"), " has what each holder used."));
  });
}
