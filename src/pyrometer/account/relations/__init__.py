"""Temporary tables and views that answers and detectors share, one module per subject."""
