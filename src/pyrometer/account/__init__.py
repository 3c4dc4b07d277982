"""The ledger: every GPU-millisecond has exactly one state. The rules are SQL files in `build`."""
