"""Findings: the evidence that detectors read, their proposals, claims on ledger time, and continuity."""
