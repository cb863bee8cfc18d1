"""Models on this host, checked against the lock, and the recipes of models that nvllm makes itself.

In: a directory and the locked files. Out: its files, each hashed, the tree hash over them, or refusals.
"""
