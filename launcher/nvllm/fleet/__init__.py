"""Beyond one machine: images and blessings travel by digest through an OCI registry.

In: a finished image or a blessing, and the name of a repository. Out: digests, on the way there; on the way back, an
image in the engine with its build record, or a blessing in force. What comes back is trusted for its bytes alone.
"""
