"""How the verifier's weights are made. Nothing here is imported by a running gateway."""
