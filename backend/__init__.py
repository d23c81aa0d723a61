"""The engine: paged KV cache, continuous batching and an OpenAI-compatible server."""
