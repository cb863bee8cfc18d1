"""Everything that moves, asked once and pinned by sha256.

In: an image spec, its series, and what indexes, repositories and hubs answer. Out: `manifests/<image>.lock.json`,
read strictly, and what differs between two of them. The values of a lock are `core.lock`.
"""
