"""Files of cloud providers."""
