"""Text to vectors, the vector index, and verification of semantic candidates."""
