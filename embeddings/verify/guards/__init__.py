"""What refuses a pair of texts before the trained verifier sees it."""

from embeddings.verify.guards.gate import REASONS, VERSION, guard

__all__ = ["REASONS", "VERSION", "guard"]
