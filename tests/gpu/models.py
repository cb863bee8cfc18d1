"""Write the model, or the adapter, of a name into an empty directory: `python -m gpu.models NAME DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import small_models
import tiny_models

from gpu.project import ADAPTER
from support import lora

MODELS = {"qwen3-next": small_models.qwen3_next(), **tiny_models.ARCHITECTURES}

if __name__ == "__main__":
    name, directory = sys.argv[1], Path(sys.argv[2])
    if name == ADAPTER:
        lora.write(directory)
    else:
        tiny_models.write(MODELS[name], directory)
