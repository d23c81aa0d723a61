"""What the benchmark of routing is made of: cases, a simulation, peers, real engines."""
