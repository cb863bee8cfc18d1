"""Evidence that a person can read: ablations, benches and evaluations of a profile, each in fresh containers.

In: an image, a profile, and a probe. Out: a directory with what was run, on what, every answer, and what follows.
`arms` and `questions` say what is run, `runner` runs it, `harness` says whether a leg counts, `comparison` compares.
"""
