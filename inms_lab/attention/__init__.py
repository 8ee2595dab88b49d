"""Attention over the logical tile grid: batch.py.

By torch's operators: reads.py (who reads what), tiles.py (reading). By compiled kernels: layout.py
(who reads what), compiled.py (C++), launched.py (Triton). At other positions: turns.py.
"""
