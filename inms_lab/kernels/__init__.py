"""C++ kernels, compiled on the user's machine on demand: build.py, linears.py; lanes.h, *.cpp."""
