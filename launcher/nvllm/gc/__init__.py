"""What nothing refers to any more: found from values, shown, and then removed.

In: cache and state of this host, and the projects that have used them. Out: the pieces that may go, and why each
other one stays.
"""
