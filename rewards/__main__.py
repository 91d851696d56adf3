"""`python -m rewards`: the command line of the rewards (see `rewards.cli.main`)."""

from __future__ import annotations

import sys


def run() -> int:
    """The exit status of the command; 130 after Ctrl-C, also while the rest is imported."""
    try:
        from rewards.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("python -m rewards: error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
