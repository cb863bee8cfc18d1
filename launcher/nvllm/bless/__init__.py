"""Blessing a compile cache: one cold compile, trials in fresh containers that load it read-only, and one rename.

In: an examined launch plan and the number of trials. Out: a manifest in force with the evidence that it names, or
a refusal and nothing changed.
"""
