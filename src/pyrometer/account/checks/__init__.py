"""Checks and repairs of a data folder."""
