"""Anthropic's Messages API in the words of chat completions: requests, replies, streams."""
