"""The server: takes records in, keeps the ledger up to date, and answers questions over HTTP and as a page."""
