"""The command line `python -m rewards`: `score`, `check` and `explain`."""
