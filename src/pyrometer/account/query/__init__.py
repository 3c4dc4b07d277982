"""Questions to the ledger: sums, cost and energy by any grouping."""
