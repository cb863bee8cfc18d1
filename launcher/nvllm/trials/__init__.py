"""Trials: one image, started in a fresh container and tried once.

In: a build or a launch plan, and a probe. Out: a verdict (good, bad of a kind, untestable at a stage) with its
evidence. Bisects, blessings, evidence and workers of the fleet use it.
"""
