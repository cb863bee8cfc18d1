"""The environment variables that a source of vLLM reads, and those of a spec that it does not, or otherwise."""

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


def test_a_variable_that_another_expression_reads_is_changed() -> None:
    def table(**read: str) -> dict[str, bytes]:
        rows = "".join(f'    "{name}": {value},  # as text\n' for name, value in read.items())
        return {"vllm/envs.py": f"environment_variables = {{\n{rows}}}\n".encode()}

    before = table(VLLM_SAME="lambda: os.getenv('A')", VLLM_LATE="lambda: int(os.getenv('B', '0'))", VLLM_GONE="1")
    after = table(VLLM_SAME='lambda: (os.getenv("A"))', VLLM_LATE="pick('B', [1])", VLLM_NEW="2")
    spec = specfile.parse(GOOD, SHOWN)
    name, profile = next(iter(spec.profiles.items()))
    names = ("VLLM_SAME", "VLLM_LATE", "VLLM_GONE", "VLLM_NEW")
    runtime = replace(spec.runtime, environment=dict.fromkeys(names, "1"))
    spec = replace(spec, runtime=runtime, profiles={name: replace(profile, environment={"VLLM_LATE": "2"})})
    expressions = ("int(os.getenv('B', '0'))", "pick('B', [1])")
    assert list(variables.changed(spec, before, after)) == [
        ("runtime.environment.VLLM_LATE", "VLLM_LATE=1", *expressions),
        (f"profiles.{name}.environment.VLLM_LATE", "VLLM_LATE=2", *expressions),
    ]
    assert list(variables.changed(spec, {}, after)) == []
