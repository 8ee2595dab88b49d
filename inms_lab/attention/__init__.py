"""Attention over the logical tile grid (batch.py: which rows read which tiles; tiles.py: reading)."""
