"""A patch series: read, chosen from, applied whole or not at all, checked against a source, written.

In: `patches/<base>/series.yaml` with its patch files, and pristine sources. Out: the patched files, as values.
"""
