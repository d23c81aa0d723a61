"""Requests and errors as they are on the wire: pydantic models, and OpenAI's words for refusals."""
