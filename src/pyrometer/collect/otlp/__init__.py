"""Parsing of OTLP requests of training processes."""
