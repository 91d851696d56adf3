"""`python -m rewards`: the command line of the rewards (see `rewards.cli`)."""

from __future__ import annotations

import sys

from rewards.cli import main

if __name__ == "__main__":
    sys.exit(main())
