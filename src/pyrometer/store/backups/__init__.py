"""Backups: their contents, folders with many of them, and restoring one."""
