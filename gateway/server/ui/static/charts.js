// Charts of the last ten minutes. Each has a legend with the latest values, as text.

/* global uPlot */
import { fill, h } from "./dom.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const time = (value) => new Date(value * 1000).toLocaleTimeString("en-GB", { timeZone: "UTC" });
const ROOM_RIGHT = 32; // half of the last time on the axis
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * Make a chart. A line is {name, colour, dash?}; `write` makes text of a value. Returns the figure,
 * `draw(times, ...lines)`, and `close`.
 */
export function chart(title, lines, write, { log = false, whole = false, height = 180 } = {}) {
  const place = h("div", { class: "plot", role: "img" });
  const legend = h("ul", { class: "legend" });
  const figure = h("figure", { class: "card" }, h("figcaption", {}, title), place, legend);
  let plot = null;
  let data = null;

  const grid = () => ({ stroke: colour("line"), width: 1 });
  const tens = (_, ticks) => ticks.map((tick) => (Number.isInteger(Math.log10(tick)) ? tick : null));
  const filter = log ? { filter: tens } : {};
  const make = () => {
    plot?.destroy();
    const narrow = place.clientWidth < 420;
    plot = new uPlot({
      width: Math.max(place.clientWidth, 200),
      height,
      padding: [null, ROOM_RIGHT, null, null],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true }, y: log ? { distr: 3 } : { range: (_, low, high) => [0, Math.max(high * 1.1, 0.1)] } },
      axes: [
        { stroke: colour("faint"), grid: { show: false }, ticks: grid(), size: 30, space: narrow ? 90 : 70, values: (_, ticks) => ticks.map(time) },
        { stroke: colour("faint"), grid: { ...grid(), ...filter }, ticks: { show: false }, size: 64, ...filter, values: (_, ticks) => ticks.map((tick) => (tick === null || (whole && !Number.isInteger(tick)) ? "" : write(tick))) },
      ],
      series: [{}, ...lines.map((line) => ({ label: line.name, stroke: colour(line.colour), width: 2, dash: line.dash, points: { show: false }, spanGaps: true }))],
    }, data, place);
  };
  const watcher = new ResizeObserver(() => plot?.setSize({ width: Math.max(place.clientWidth, 200), height }));
  watcher.observe(place);
  const remake = () => plot && make();
  dark.addEventListener("change", remake);

  return {
    figure,
    draw(times, ...series) {
      const last = series.map((values) => values.findLast((value) => value !== null) ?? null);
      const isEmpty = last.every((value) => value === null);
      fill(legend, lines.map((line, index) =>
        h("li", {}, h("span", { class: `swatch ${line.colour}${line.dash ? " dashed" : ""}`, "aria-hidden": "true" }),
          `${line.name} `, h("b", {}, last[index] === null ? "–" : write(last[index])))));
      place.setAttribute("aria-label", `${title}. ${lines.map((line, index) => `${line.name}: ${last[index] === null ? "none" : write(last[index])}`).join(", ")}.`);
      data = [times, ...series];
      if (times.length < 2 || isEmpty) {
        plot?.destroy();
        plot = null;
        fill(place, h("p", { class: "hint" }, "No data yet"));
      } else if (plot) plot.setData(data);
      else {
        fill(place);
        make();
      }
    },
    close() {
      watcher.disconnect();
      dark.removeEventListener("change", remake);
      plot?.destroy();
    },
  };
}
