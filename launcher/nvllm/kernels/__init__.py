"""Triton's kernels, compiled for every target with no GPU, and proved to be all that an engine will launch.

In: the modules with kernels as the patch set leaves them, the locked compilers. Out: the entries of one layer.
"""
