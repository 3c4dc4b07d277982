"""Exports of the ledger and of runs, one module per format or target."""
