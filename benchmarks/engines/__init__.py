"""What the benchmarks of the engine compare, and the trace that they replay in virtual time."""
