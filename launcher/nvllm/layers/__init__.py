"""Layers: deterministic tar files, each a pure function of locked files.

In: Debian packages, wheels, patched sources. Out: a tar whose sha256 is the same on every host, made once and kept
under what it is made from.
"""
