"""Table HTML: `repair`, `table` and `scan` read it as the OmniDocBench scorer does, `reader` as a browser shows it."""
