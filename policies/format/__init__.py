"""The YAML of a policy: its keys, their values, and what they make of a decision."""
