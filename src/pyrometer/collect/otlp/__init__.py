"""OTLP requests of training processes."""
