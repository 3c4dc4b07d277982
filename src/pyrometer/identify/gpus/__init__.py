"""Devices, GPU models and prices."""
