"""Several upstreams as one: choice, health, retries, waiting."""
