"""Collection from any Prometheus-compatible store, and the formats of Prometheus."""
