"""Facts in, one file per source. A source only translates: it decides nothing about states, owners or money."""
