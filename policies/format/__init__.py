"""The YAML of a policy: its keys, their values, and the resulting decision."""
