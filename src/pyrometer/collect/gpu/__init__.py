"""GPU telemetry: dcgm-exporter's metrics, scrapes, and their conversion to records."""
