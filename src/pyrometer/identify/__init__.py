"""Who and what: pods → workload → experiment → team, devices → slots, GPU models → power and price."""
