"""Any Prometheus-compatible store: what was scraped while nobody of ours was there."""
