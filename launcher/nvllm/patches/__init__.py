"""Patch series: reading them, choosing patch sets, applying them strictly, checking and writing patches.

In: `patches/<base>/series.yaml` with its patch files, and pristine sources. Out: the patched files, as values.
"""
