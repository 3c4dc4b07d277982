"""Answers about experiments: what their runs reached, and for how much money."""
