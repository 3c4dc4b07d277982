"""Answers to questions, one module per question."""
