"""Finds the smallest set of patches that breaks, or repairs, what a probe tests.

In: a patch series, a good and a bad set, and a probe. Out: a journal, from which every decision can be repeated, and a
report. Four parts, each above the next:

- shown: `report` (terminal, JSON), `page` (for other people), `script` (for `sh`)
- run: `driver` (the loop), `inputs`, `trial_cache`; `replay_check` repeats decisions
- kept: `records` (the journal's lines and their state), `journal` (the file)
- decided, by pure functions of the problem and its trials: `forecast`, `search`, `judge` (the ends, the watch),
  `posterior` (beliefs), `problem`, `combinations` (which sets there are)
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Problem", "Settings", "drive", "propose"]

if TYPE_CHECKING:
    from nvllm.bisect.driver import drive
    from nvllm.bisect.problem import Problem, Settings
    from nvllm.bisect.search import propose
else:
    __getattr__ = exports.lazy(
        __name__, {"driver": ["drive"], "problem": ["Problem", "Settings"], "search": ["propose"]}
    )
