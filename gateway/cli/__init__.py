"""The `refrain` command and the processes that it starts."""
