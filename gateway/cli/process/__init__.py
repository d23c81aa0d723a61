"""The processes of `refrain serve`: supervisor, workers, what is planned before they start."""
