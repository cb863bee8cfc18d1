"""From a lock to an image in the engine: identity, layers, configuration, record. Only `engine` imports docker.

In: spec, lock and patch set. Out: the build hash, known before anything is built; then the image, or a context from
which `docker build` builds it.
"""
