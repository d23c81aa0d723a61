"""KV blocks between two engines: one computes prompts, the other goes on from there."""
