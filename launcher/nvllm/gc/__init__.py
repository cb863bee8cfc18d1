"""What no project refers to any more: found, listed, and then removed.

In: cache and state of this host, and the projects that have used them. Out: the pieces that can be removed.
"""
