"""What reaches out: findings that open, grow and close are told to people and to their tools."""
