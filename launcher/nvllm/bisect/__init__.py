"""Finds the smallest set of patches that breaks, or repairs, what a probe tests.

In: a patch series, a good and a bad set, and a probe. Out: a journal, from which every decision can be repeated, and a
report. `search` and `posterior` choose the next trial, `driver` runs and records it, `trials` builds and serves a set.
"""
