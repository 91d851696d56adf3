"""`python -m rewards`: the command line of the rewards (see `rewards.cli.main`)."""

from __future__ import annotations

import sys

from rewards.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
