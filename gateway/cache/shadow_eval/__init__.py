"""Shadow evaluation: cached answers compared with fresh ones, and the rates that follow."""
