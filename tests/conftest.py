"""What holds for every test, and the fixtures of the real engine, which end-to-end and refusal tests share."""

from __future__ import annotations

from hypothesis import settings

from engine_world import (  # noqa: F401 - fixtures
    built_image,
    docker_client,
    served,
    session_worlds,
    tiny_model,
    worlds,
)

# The tests run on machines that do other work too, so one slow example says nothing about the code.
settings.register_profile("nvllm", deadline=None)
settings.load_profile("nvllm")
