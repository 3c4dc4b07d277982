"""Shipping telemetry: the spool, the sender and the watcher of a node."""
