"""OpenAI's Batch API: files of requests that are computed when nobody else waits."""
