// Requests to /admin. A session's request that changes something carries its CSRF token.

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

export const hasSession = meta("refrain-session") === "token";

export class ApiError extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

const READ_SECONDS = 20;
const ACT_SECONDS = 150; // a replay takes up to two minutes

async function call(path, seconds, options = {}) {
  let reply;
  let body;
  try {
    const signal = AbortSignal.timeout(seconds * 1000);
    reply = await fetch(path, { cache: "no-store", credentials: "same-origin", signal, ...options });
    body = await reply.json();
  } catch (error) {
    if (error.name === "TimeoutError") throw new ApiError(0, `The gateway did not answer within ${seconds} s.`, null);
    if (!reply) throw new ApiError(0, "The gateway does not answer.", null);
    body = null;
  }
  if (reply.ok && body !== null) return body;
  if (reply.status === 401) document.dispatchEvent(new Event("refrain:ended"));
  throw new ApiError(reply.status, body?.error?.message ?? `The gateway answers with status ${reply.status}.`, body?.error?.param);
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return call(`/admin/${path}${text && `?${text}`}`, READ_SECONDS);
};

/** Do an action. Its fields may be JSON text, which is sent as it is. */
export const post = (path, fields) =>
  call(`/admin/${path}`, ACT_SECONDS, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Refrain-CSRF": meta("refrain-csrf") },
    body: typeof fields === "string" ? fields : JSON.stringify(fields),
  });

export async function logOut() {
  document.dispatchEvent(new Event("refrain:leaving"));
  await fetch("/ui/logout", { method: "POST", headers: { "X-Refrain-CSRF": meta("refrain-csrf") } });
  location.replace("/ui");
}
