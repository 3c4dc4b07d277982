"""Simulated clusters with known truth: what the jobs did, and what real sources would have reported.

`hardware` has the machines, `jobs` the data model, `ordinary_jobs` healthy jobs, `faults` the problems, `scenarios`
whole nights. `measurements` and `api_objects` turn a night into records, `truth` into the expected findings.
Nothing in this package knows the detectors that it tests.
"""
