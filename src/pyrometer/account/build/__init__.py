"""Builds the ledger. The rules are the SQL files in `sql/`."""
