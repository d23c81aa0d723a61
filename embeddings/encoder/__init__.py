"""Text to vectors: the sentence encoder and its runtimes."""
