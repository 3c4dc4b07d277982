"""Why: findings, one file per cause, each with its culprit, evidence and suggestion; and the answers to all questions."""
