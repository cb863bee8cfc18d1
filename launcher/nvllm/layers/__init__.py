"""Layers: deterministic tar files, each a pure function of locked files.

In: Debian packages, wheels, patched sources. Out: a tar whose sha256 is the same on every host, kept in a
cache under the hash of its inputs.
"""
