"""Importers of public data sets and recordings for `pyrometer import`: part of a source checkout, not of the wheel."""
