"""Commands about one installation: its settings, its keys, its running gateway."""
