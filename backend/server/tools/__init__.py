"""Tool calls: how models write them, read from text as it comes, and how they are demanded."""
