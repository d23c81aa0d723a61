"""What `create_app` opens by the settings: store, upstreams, semantic parts, telemetry, files."""
