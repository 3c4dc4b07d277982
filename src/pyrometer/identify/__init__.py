"""Identity of pods and devices: pods → workload → experiment → team, devices → slots, GPU models → power and price."""
