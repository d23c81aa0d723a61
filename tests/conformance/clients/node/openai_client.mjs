// The openai package, chat completions.

import OpenAI from "openai";
import { BASE_URL, MODEL, SCHEMA, run } from "./scenes.mjs";

const client = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: "anything", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "weather", parameters: SCHEMA } }];

function ask(question, more) {
  const messages = [{ role: "user", content: question }];
  return client.chat.completions.create({ model: MODEL, messages, ...more }).withResponse();
}

async function plain(question, more) {
  const { data, response } = await ask(question, more);
  const { content, tool_calls } = data.choices[0].message;
  const calls = (tool_calls ?? []).map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
  return { text: content, calls, cache: response.headers.get("cache-status") };
}

async function stream(question) {
  const { data, response } = await ask(question, { stream: true });
  let text = "";
  for await (const chunk of data) text += chunk.choices[0]?.delta.content ?? "";
  return { text, calls: [], cache: response.headers.get("cache-status") };
}

await run(plain, stream, (question) => plain(question, { tools }));
