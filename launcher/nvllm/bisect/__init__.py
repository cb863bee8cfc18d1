"""The smallest set of patches that breaks, or repairs, what a probe looks at.

In: a series, two ends, a probe. Out: a journal, of which every decision can be made again, and a report. `search`
and `posterior` say what to try next, `driver` asks and writes down, `trials` builds and serves each set.
"""
