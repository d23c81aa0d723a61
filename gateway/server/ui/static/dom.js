// Elements and texts. Text from the API only ever becomes a text node.

/** Make an element: attributes by name, listeners by onclick and the like, then children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined));
}

/**
 * Make a table with a caption. A column is {name, cell(row), number?}; the first column heads rows.
 * `empty` is told where there are no rows. On a narrow screen the cells of a `stacked` row stand one
 * above the other, the last one first.
 */
export function table(caption, columns, rows, empty = "None.", stacked = false) {
  if (rows.length === 0) return h("section", { class: "block" }, h("h2", {}, caption), h("p", { class: "hint" }, empty));
  const head = columns.map((column) => h("th", { scope: "col", class: column.number && "number" }, column.name));
  const body = rows.map((row) =>
    h("tr", {}, columns.map((column, index) =>
      h(index ? "td" : "th", { scope: index ? null : "row", class: column.number && "number" }, column.cell(row)))));
  return h("div", { class: "block scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: stacked && "stacked" }, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Make a list of names and values. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Make a field with its label. */
export function labelled(text, control, hint = null) {
  const id = control.id || `field-${(labelled.count = (labelled.count || 0) + 1)}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" }, h("label", { for: id }, text), control,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}

/** Show a dialog with a title; return it. It leaves the page when it closes. */
export function dialog(title, ...children) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const element = h("dialog", { "aria-labelledby": "dialog-title" },
    h("div", { class: "dialog-head" }, heading,
      h("button", { type: "button", class: "quiet", onclick: () => element.close() }, "Close")),
    children);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return element;
}

/** Run the work of a button, which is off meanwhile; tell a failure in `place`. */
export async function run(button, place, work) {
  button.disabled = true;
  fill(place);
  try {
    await work();
  } catch (error) {
    fill(place, h("p", { class: "problem", role: "alert" }, error.message));
  } finally {
    button.disabled = false;
  }
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);

/** Write a number in few characters: 12.3K. */
export const brief = (value) => (Math.abs(value) < 10_000 ? whole.format(value) : short.format(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return count(value);
  return value >= 100 ? whole.format(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export function share(value) {
  if (value === null || value === undefined) return "–";
  const percent = value * 100;
  return `${percent >= 10 || percent === 0 ? percent.toFixed(0) : percent.toPrecision(2)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toPrecision(value < 0.1 ? 2 : 3)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  if (value < 172_800) return `${Number((value / 3600).toFixed(1))} h`;
  return `${Number((value / 86_400).toFixed(1))} days`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : value.toFixed(0)} ${units[unit]}`;
}

export function dollars(value) {
  if (value === null || value === undefined) return "no price";
  return `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: value && value < 1 ? 4 : 2 })}`;
}

/** Write a time, in seconds since the epoch, as logs have it. */
export const utcText = (time) => `${new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** Write a time as logs have it; a pointer shows it by the reader's clock, too. */
export const utc = (time) => h("time", { datetime: new Date(time * 1000).toISOString(), title: `${new Date(time * 1000).toLocaleString("en-GB")} by your clock` },
  utcText(time));

export const hash = (text) => h("code", { title: text }, `${text.slice(0, 10)}…`);
