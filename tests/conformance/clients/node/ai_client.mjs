// Vercel's AI SDK with its provider for OpenAI-compatible servers.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { BASE_URL, MODEL, SCHEMA, run } from "./scenes.mjs";

const provider = createOpenAICompatible({
  name: "refrain",
  baseURL: `${BASE_URL}/v1`,
  apiKey: "anything",
});
const common = { model: provider(MODEL), maxRetries: 0 };
const weather = tool({
  inputSchema: jsonSchema(SCHEMA),
  execute: ({ city }) => `sunny in ${city}`,
});

async function plain(prompt) {
  const { text, response } = await generateText({ ...common, prompt });
  return { text, calls: [], cache: response.headers["cache-status"] };
}

async function stream(prompt) {
  const reply = streamText({ ...common, prompt });
  let text = "";
  for await (const piece of reply.textStream) text += piece;
  return { text, calls: [], cache: (await reply.response).headers["cache-status"] };
}

// The SDK calls the tool and asks again with what it returned.
async function call(prompt) {
  const asked = { ...common, prompt, tools: { weather }, stopWhen: stepCountIs(3) };
  const { text, steps } = await generateText(asked);
  const calls = steps.flatMap((step) => step.toolCalls).map((c) => [c.toolName, c.input]);
  return { text, calls, cache: steps[0].response.headers["cache-status"] };
}

await run(plain, stream, call);
