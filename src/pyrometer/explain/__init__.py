"""Why: findings, one file a cause, each with its culprit, evidence and suggestion; and the reports that tell them."""
