"""Models on this host: exactly the locked files or a refusal, and the recipes by which an image makes some itself.

In: a directory and what the lock says of it. Out: its files, each hashed, and the tree hash over them.
"""
