"""Notifications: findings that open, grow and end are sent to people and their tools."""
