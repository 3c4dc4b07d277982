"""Causes of waste: one detector per file. `registry` lists them in the order in which they claim time."""
