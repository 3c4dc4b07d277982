"""Facts in, one file a source. A source only translates: it decides nothing about states, owners or money."""
