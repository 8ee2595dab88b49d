"""Attention over the logical tile grid: batch.py, reads.py (who reads what), tiles.py (reading)."""
