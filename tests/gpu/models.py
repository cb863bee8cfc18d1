"""Write the model of a name into an empty directory: `python -m gpu.models NAME DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import small_models
import tiny_models

MODELS = {"qwen3-next": small_models.qwen3_next(), **tiny_models.ARCHITECTURES}

if __name__ == "__main__":
    tiny_models.write(MODELS[sys.argv[1]], Path(sys.argv[2]))
