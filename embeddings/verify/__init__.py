"""Pure checks that a semantic candidate answers the question asked."""
