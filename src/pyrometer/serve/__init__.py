"""The server: HTTP routes, intake of data, and tasks."""
