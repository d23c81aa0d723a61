"""What OpenTelemetry gets of the gateway: spans and metrics. Imported only if one is exported."""
