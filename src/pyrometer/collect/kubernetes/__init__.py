"""Kubernetes as a source: list, watch, list again when something was missed; read-only."""
