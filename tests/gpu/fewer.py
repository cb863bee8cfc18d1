"""`nvllm` with a workload of one request: `python -m gpu.fewer bless ...`, for a blessing that lacks kernels."""

from __future__ import annotations

import sys

from nvllm.cli import main
from nvllm.core import workload
from nvllm.core.workload import Bounds, Step


def one_request(of: Bounds, number: int) -> tuple[Step, ...]:
    """Return a round of one request, instead of `workload.steps`."""
    return (full(of, number)[-1][:1],)


if __name__ == "__main__":
    full = workload.steps
    workload.steps = one_request
    workload.joint_steps = lambda of, number: ()
    sys.exit(main.main())
