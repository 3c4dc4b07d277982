"""Metrics of machines."""
