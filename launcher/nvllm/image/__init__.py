"""From a lock to an image in the engine: identity, layers, configuration, record. Docker's API is spoken here alone.

In: spec, lock and patch set. Out: a build hash before anything is made, then the image that it stands for; or a
context from which `docker build` makes it.
"""
