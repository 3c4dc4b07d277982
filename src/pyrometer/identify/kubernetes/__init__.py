"""Kubernetes objects → pods, workloads, attempts and gangs."""
