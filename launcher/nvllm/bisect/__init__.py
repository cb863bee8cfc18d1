"""Finds the smallest set of patches that breaks, or repairs, what a probe tests.

In: a patch series, a good and a bad set, and a probe. Out: a journal, from which every decision can be repeated, and a
report. Four parts, each above the next:

- presented: `report` (terminal, JSON), `page` (for other people)
- run: `driver` (the loop), `artifacts` (what trials load), `inputs`, `trial_cache`; `replay_check` repeats what was
  decided
- kept: `records` (the journal's lines and their state), `journal` (the file)
- decided, by pure functions of the problem and its trials: `lookahead`, `forecast`, `search` with `ordered` and
  `minimal`, `weighing` (single sets), `judge` (the ends, the watch), `homogeneity` (whether artifacts differ),
  `posterior` (beliefs), `problem`, `answer`, `combinations` (which sets there are)
"""
