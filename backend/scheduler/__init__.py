"""The scheduler: pure decisions about steps, blocks and the prefix cache."""
