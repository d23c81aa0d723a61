"""What the benchmark of compression is made of."""
