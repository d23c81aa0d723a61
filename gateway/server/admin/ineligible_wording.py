"""Why a request may only hit exactly, in a sentence for people."""

from gateway.protocol.reasons import Ineligible

POLICY = "policy"
"""The word where the policy does not want it, which is no property of the request."""
SWITCHED_OFF = "the policy switches semantic off"

WORDING = {
    Ineligible.ENDPOINT: "only chat completions and responses are looked up by meaning",
    Ineligible.TOOLS: "with tools the answer may be an action",
    Ineligible.TOOL_RESULTS: "what a tool returned holds the particulars",
    Ineligible.NOT_TEXT: "the conversation holds more than plain text",
    Ineligible.LAST_TURN: "the last message is not the user's",
    Ineligible.EMPTY: "the last message is empty",
    Ineligible.TOO_LONG: "the text is too long to be compared whole",
    Ineligible.UNREADABLE: "it holds emoji, control or invisible characters",
    Ineligible.LANGUAGE: "it is not in English, or not in English alone",
    Ineligible.CODE: "it holds code, which is exact to the character",
    Ineligible.STUFFED: "it repeats itself, or holds what is no word",
    Ineligible.INSTRUCTIONS: "it gives orders to the model or to the cache",
    Ineligible.PAYLOAD: "it brings a text to work on, or a link",
    Ineligible.MANY_QUESTIONS: "it asks several questions at once",
    Ineligible.FOLLOW_UP: "it leans on the earlier turns",
    Ineligible.VAGUE: "it says too little by itself",
    Ineligible.VARIETY: "it asks for another answer, or for one by chance",
    Ineligible.TIME: "the answer depends on when it is asked",
}
