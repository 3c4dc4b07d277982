"""A cluster whose truth is known: what its jobs really did, and what real sources would have reported of it.

`cluster` is the hardware, `jobs` what happens to it, `lives` how ordinary jobs live, `faults` what goes wrong,
`scenarios` whole nights; `measure` and `objects` turn a night into records, `truth` into what should be found in them.
Nothing here knows the code that judges it.
"""
