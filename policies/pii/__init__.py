"""Personal data and secrets in text: the scan, and the detectors of each kind.

What finds a kind reads text in normal form (``readings.normalise``) and validates what its patterns
propose: checksums, issued ranges, context. Patterns take linear time: they run on RE2, or leave
nothing to backtrack into.
"""
