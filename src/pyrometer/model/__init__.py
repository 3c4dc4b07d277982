"""The nouns: records, their columns, states, causes, units and settings. Nothing here reads or writes anything."""
