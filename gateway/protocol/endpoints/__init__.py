"""One file for each endpoint with cached answers, and their shared parts."""
