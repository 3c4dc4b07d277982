"""Explains the ledger: detectors of causes, findings, answers to questions, and their rendering."""
