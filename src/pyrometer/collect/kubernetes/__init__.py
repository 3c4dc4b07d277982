"""Read-only collection from Kubernetes: list, watch, and list again when changes were missed."""
