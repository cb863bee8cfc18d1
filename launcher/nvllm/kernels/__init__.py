"""Triton's kernels, compiled for every target without a GPU, and checked to be all that an engine launches.

In: the patched modules with kernels, the locked compilers. Out: the entries of one layer.
"""
