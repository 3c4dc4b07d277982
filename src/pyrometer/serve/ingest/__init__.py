"""What fills a server's store."""
