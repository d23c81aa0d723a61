"""Commands that read policies, logs and journals; only `policy explain` may ask a gateway."""
