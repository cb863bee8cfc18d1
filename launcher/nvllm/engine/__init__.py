"""The container engine, Docker or Podman behind Docker's API: which one it is, its images, its containers, its answers.

In: the environment and Docker's contexts; images as layers; launch plans. Out: facts of the engine, its images and its
containers. Only this room imports docker.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Engine", "connect"]

if TYPE_CHECKING:
    from nvllm.engine.engine import Engine, connect
else:
    __getattr__ = exports.lazy(__name__, {"engine": ["Engine", "connect"]})
