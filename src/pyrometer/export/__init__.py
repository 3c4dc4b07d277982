"""Facts out, one file a format."""
