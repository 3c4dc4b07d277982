"""What tests share: clusters, runs, ledgers, servers and receivers."""
