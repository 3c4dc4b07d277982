"""Answers about one training run, or about all of them."""
