"""Pure decisions of the gateway."""
