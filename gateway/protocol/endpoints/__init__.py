"""One file for each endpoint whose answers are cached, and what they share."""
