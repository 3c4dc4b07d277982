"""Training processes → runs, attempts and locations."""
