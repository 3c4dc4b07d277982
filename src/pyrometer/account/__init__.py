"""GPU-milliseconds → exactly one state: the ledger. The rules are the SQL files beside the code that runs them."""
