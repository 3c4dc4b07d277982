"""Answers as terminal text, HTML and SVG."""
