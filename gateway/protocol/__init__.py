"""OpenAI's API and HTTP as they are on the wire. Pure."""
