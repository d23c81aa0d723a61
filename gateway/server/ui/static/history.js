// The last ten minutes, which charts draw: what the gateway has kept, then a poll every two seconds.

import { get } from "./api.js";

const EVERY = 2000;
const KEPT = 600; // seconds
const GAP = 15; // seconds without a poll, which the gateway's own samples fill
const WINDOW = 10; // seconds over which a rate is the mean
const WIDE = 30; // seconds over which a quantile is

let polls = [];
const readers = new Set();
let timer = null;
let looking = false;
let leaving = false;

export const latest = () => polls.at(-1) ?? null;

/** Call `reader` after each poll; return a function that ends it. */
export function follow(reader) {
  readers.add(reader);
  return () => readers.delete(reader);
}

export async function start() {
  if (leaving || looking) return;
  clearTimeout(timer);
  looking = true;
  let problem = null;
  if (!document.hidden) {
    try {
      await look();
    } catch (error) {
      problem = error;
    }
  }
  looking = false;
  if (leaving || problem?.status === 401) return;
  for (const reader of readers) reader(problem);
  timer = setTimeout(start, EVERY);
}

async function look() {
  const found = await get("overview");
  const last = latest()?.time ?? 0;
  if (found.time - last > GAP) {
    const { samples } = await get("overview/history");
    polls.push(...samples.filter((sample) => sample.time > last && sample.time < found.time));
  }
  if (found.time !== last) polls.push(found);
  polls = polls.filter((poll) => found.time - poll.time <= KEPT);
}

document.addEventListener("refrain:leaving", () => (leaving = true));
document.addEventListener("visibilitychange", () => document.hidden || start());

export const times = () => polls.map((poll) => poll.time);

/** The seconds that the polls cover. */
export const covered = () => (polls.length ? polls.at(-1).time - polls[0].time : 0);

/** The poll that is at least so many seconds older, or the first. */
function before(index, seconds) {
  let place = index;
  while (place > 0 && polls[index].time - polls[place].time < seconds) place -= 1;
  return polls[place];
}

/** Differences of a sum over the last seconds before each poll, a second. A restart begins anew. */
export function rates(read) {
  return polls.map((poll, index) => {
    const earlier = before(index, WINDOW);
    const spent = poll.time - earlier.time;
    const grown = read(poll) - read(earlier);
    return spent > 0 && grown >= 0 ? grown / spent : null;
  });
}

/** Growth of a sum over all polls that are kept. */
export function grown(read) {
  let sum = 0;
  for (let index = 1; index < polls.length; index += 1) {
    sum += Math.max(0, read(polls[index]) - read(polls[index - 1]));
  }
  return sum;
}

export const values = (read) => polls.map((poll) => read(poll) ?? null);

/** A quantile of the times to first token of an outcome, before each poll. */
export function quantiles(outcome, quantile) {
  return polls.map((poll, index) =>
    quantileOf(poll.ttft[outcome] ?? [], before(index, WIDE).ttft[outcome] ?? [], quantile));
}

/** Interpolate in the buckets of a histogram that grew; null where nothing was counted. */
export function quantileOf(now, before, quantile) {
  const earlier = new Map(before.map(([most, number]) => [most, number]));
  const grew = now.map(([most, number]) => [most, number - (earlier.get(most) ?? 0)]);
  const total = grew.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const wanted = quantile * total;
  let [low, under] = [0, 0];
  for (const [most, number] of grew) {
    if (number >= wanted) {
      if (most === null) return low;
      return low + (most - low) * ((wanted - under) / Math.max(number - under, 1));
    }
    [low, under] = [most ?? low, number];
  }
  return low;
}
