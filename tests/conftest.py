"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# The tests run on machines that do other work too, so one slow example says nothing about the code.
settings.register_profile("nvllm", deadline=None)
settings.load_profile("nvllm")
