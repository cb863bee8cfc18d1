"""Compile caches that were blessed: exact trees, stored once under their hash, and the manifests that bind them.

In: a cache that an engine wrote, and the figures of its trials. Out: a tree that equals its manifest byte for byte, or
a refusal; a private copy of the tree to mount.
"""
