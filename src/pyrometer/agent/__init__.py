"""The GPU exporter of a node. It imports neither DuckDB nor any other heavy package."""
