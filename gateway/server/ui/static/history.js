// The last ten minutes: a poll every two seconds, and the series that charts draw of the polls.

import { get } from "./api.js";

const EVERY = 2000;
const KEPT = 300;
const WINDOW = 5; // polls of which a rate is the mean
const WIDE = 15; // polls of which a quantile is

const polls = [];
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
      const found = await get("overview");
      if (found.time !== latest()?.time) polls.push(found);
      if (polls.length > KEPT) polls.shift();
    } catch (error) {
      problem = error;
    }
  }
  looking = false;
  if (leaving || problem?.status === 401) return;
  for (const reader of readers) reader(problem);
  timer = setTimeout(start, EVERY);
}

document.addEventListener("refrain:leaving", () => (leaving = true));
document.addEventListener("visibilitychange", () => document.hidden || start());

export const times = () => polls.map((poll) => poll.time);

/** Differences of a sum over the last polls before each poll, a second. A restart begins anew. */
export function rates(read) {
  return polls.map((poll, index) => {
    const before = polls[Math.max(0, index - WINDOW)];
    const spent = poll.time - before.time;
    const grown = read(poll) - read(before);
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
  return polls.map((poll, index) => {
    const before = polls[Math.max(0, index - WIDE)];
    return quantileOf(poll.ttft[outcome] ?? [], index ? before.ttft[outcome] ?? [] : poll.ttft[outcome] ?? [], quantile);
  });
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
