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

async function call(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, "The gateway does not answer.", null);
  }
  const body = await reply.json().catch(() => null);
  if (reply.ok && body !== null) return body;
  if (reply.status === 401) document.dispatchEvent(new Event("refrain:ended"));
  throw new ApiError(reply.status, body?.error?.message ?? `The gateway answers with status ${reply.status}.`, body?.error?.param);
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return call(`/admin/${path}${text && `?${text}`}`);
};

/** Do an action. Its fields may be JSON text, which is sent as it is. */
export const post = (path, fields) =>
  call(`/admin/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Refrain-CSRF": meta("refrain-csrf") },
    body: typeof fields === "string" ? fields : JSON.stringify(fields),
  });

export async function logOut() {
  document.dispatchEvent(new Event("refrain:leaving"));
  await fetch("/ui/logout", { method: "POST", headers: { "X-Refrain-CSRF": meta("refrain-csrf") } });
  location.replace("/ui");
}
