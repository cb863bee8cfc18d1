"""Compile caches that were blessed: exact trees, stored once under their hash, and the manifests that bind them.

In: a cache that an engine wrote, and what its trials said. Out: a tree that is what its manifest says, byte for
byte, or a refusal; a private copy of it to mount.
"""
