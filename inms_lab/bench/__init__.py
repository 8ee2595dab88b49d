"""Measurements that a command prints: one module each, a function that gives plain data."""
