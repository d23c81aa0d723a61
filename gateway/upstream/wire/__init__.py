"""Bytes to an upstream and back: connections, dialects, codings, and how a reply reads."""
