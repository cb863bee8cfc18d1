"""What the host is, whether it will do, and the locks by which processes on it keep out of each other's way.

In: /proc, the engine's answers, a launch plan. Out: facts as values, and an outcome for each check.
"""
