"""`python -m gateway.cli` is the `refrain` command."""

import sys

from gateway.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
