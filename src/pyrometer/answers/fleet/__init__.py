"""Answers about the cluster: its map, its workloads, queues, pipelines and sweeps."""
