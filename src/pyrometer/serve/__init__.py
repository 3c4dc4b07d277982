"""HTTP: for now the one page of a report, to this machine only."""
