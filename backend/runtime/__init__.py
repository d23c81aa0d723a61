"""The torch side of the engine: weights, KV cache, model runner, loop."""
