"""``python -m nvllm`` is ``nvllm``."""

from __future__ import annotations

import sys

from nvllm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
