"""Kernels, compiled on the user's machine on demand.

C++ for the CPU: build.py, native.py; lanes.h, *.cpp. Triton for CUDA: launcher.py, tiles_triton.py.
"""
