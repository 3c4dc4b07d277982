"""Steps: the ring, phases, windows, and the work and data of a step."""
