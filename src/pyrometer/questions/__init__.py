"""The questions of commands and of the HTTP API, and where they are answered: folder, server or lake."""
