"""Everything that moves, resolved once and pinned by sha256.

In: an image spec, its series, and what indexes, repositories and the hub answer. Out: `manifests/<image>.lock.json`,
read strictly, and the differences between two locks. The values of a lock are in `core.lock`.
"""
