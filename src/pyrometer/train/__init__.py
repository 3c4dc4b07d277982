"""Inside the training process, and the sender beside it. Standard library only; imports nothing of the rest."""
