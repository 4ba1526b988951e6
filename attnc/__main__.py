"""`python -m attnc`."""

import sys

from attnc.cli import main

if __name__ == "__main__":
    sys.exit(main())
