"""The command curl."""

import json
import subprocess

import scenes

TOOL = {"type": "function", "function": {"name": "weather", "parameters": scenes.SCHEMA}}


def ask(question, **more):
    body = {"model": scenes.MODEL, "messages": [{"role": "user", "content": question}], **more}
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--no-buffer", "--include"]
    command += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    command += ["--header", "Authorization: Bearer anything"]
    url = f"{scenes.BASE_URL}/v1/chat/completions"
    said = subprocess.run([*command, url], capture_output=True, check=True, text=True, timeout=30)
    head, _, content = said.stdout.partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    return content, headers["Cache-Status"]


def plain(question, **more):
    content, cache = ask(question, **more)
    message = json.loads(content)["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(function["name"], function["arguments"]) for function in functions]
    return scenes.answer(message["content"], calls=calls, cache=cache)


def stream(question):
    content, cache = ask(question, stream=True)
    *events, last = [line.removeprefix("data: ") for line in content.splitlines() if line]
    if last != "[DONE]":
        raise SystemExit(f"the stream ends with {last}")
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return scenes.answer("".join(c["delta"].get("content") or "" for c in choices), cache=cache)


scenes.run(plain, stream, lambda question: plain(question, tools=[TOOL]))
