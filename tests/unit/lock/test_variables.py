"""The environment variables that a source of vLLM reads, and those of a spec that it does not."""

from __future__ import annotations

from dataclasses import replace

from nvllm.lock import variables
from nvllm.spec import specfile
from support.specs import GOOD, SHOWN

TABLE = b"""
environment_variables: dict[str, Callable[[], Any]] = {
    "VLLM_IN_TABLE": lambda: os.getenv("VLLM_IN_TABLE"),
}
"""
SOURCES = {
    "vllm/envs.py": TABLE,
    "vllm/platforms/cpu.py": b"""if os.environ.get( 'VLLM_ASKED') or os.environ["VLLM_TAKEN"]: print("VLLM_GONE")""",
    "tests/test_it.py": b"""os.getenv("VLLM_OF_A_TEST")""",
}


def test_a_variable_is_read_by_the_table_or_by_any_module() -> None:
    assert variables.known(SOURCES, "vllm.tar.gz") == {"VLLM_IN_TABLE"}
    assert variables.known({"vllm/envs.py": b"environment_variables = {'VLLM_B': 1}"}, "vllm.tar.gz") == {"VLLM_B"}
    names = ("VLLM_IN_TABLE", "VLLM_ASKED", "VLLM_TAKEN", "VLLM_GONE", "VLLM_OF_A_TEST", "TORCH_LOGS")
    spec = specfile.parse(GOOD, SHOWN)
    name, profile = next(iter(spec.profiles.items()))
    runtime = replace(spec.runtime, environment=dict.fromkeys(names, "1"))
    spec = replace(spec, runtime=runtime, profiles={name: replace(profile, environment={"VLLM_LATE": "1"})})
    assert list(variables.unread(spec, SOURCES, "vllm.tar.gz")) == [
        ("runtime.environment.VLLM_GONE", "VLLM_GONE"),
        ("runtime.environment.VLLM_OF_A_TEST", "VLLM_OF_A_TEST"),
        (f"profiles.{name}.environment.VLLM_LATE", "VLLM_LATE"),
    ]
    assert variables.foreign(spec) == ("TORCH_LOGS",)
