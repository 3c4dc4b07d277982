"""Tasks that run next to the HTTP server."""
