"""The run in this process: its identity, settings, progress and end."""
