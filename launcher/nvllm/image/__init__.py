"""From a lock to an image in the engine: identity, configuration, record.

In: spec, lock and patch set. Out: the build hash, known before anything is built; then the image, or a context from
which `docker build` builds it.
"""
