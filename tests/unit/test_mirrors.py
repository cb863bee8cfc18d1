"""Each module has its tests where a reader looks for them: `tests/unit/ROOM/test_MODULE.py`, or a row of this table."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "launcher/nvllm"

ELSEWHERE = {
    "__main__": "unit/cli/test_main.py",
    "bless/replay": "unit/bless/test_blessing.py",
    "bisect/minimal": "unit/bisect/test_search.py",
    "bisect/ordered": "unit/bisect/test_search.py",
    "bisect/weighing": "unit/bisect/test_search.py",
    "cache/evaluation": "unit/cache/test_blessings.py",
    "cache/seen_versions": "refusals/test_nv906.py",
    "cli/bisect_journals": "refusals/test_nv805.py",
    "cli/bisect_sets": "unit/cli/test_bisect.py",
    "cli/build": "e2e/test_build.py",
    "bless/several": "unit/cli/test_bless.py",
    "cli/dev_serve": "e2e/test_dev.py",
    "bless/compiled": "unit/bisect/test_artifacts.py",
    "cli/evidence_options": "unit/evidence/test_campaigns.py",
    "cli/dev_test": "e2e/test_dev.py",
    "cli/dockerfile": "e2e/test_dockerfile.py",
    "cli/fleet": "refusals/test_nv341.py",
    "cli/frame": "unit/cli/test_main.py",
    "cli/output": "unit/cli/test_main.py",
    "cli/push": "fleet/test_push_pull.py",
    "cli/serve": "e2e/test_serve.py",
    "core/evaluation": "unit/spec/test_specfile.py",
    "core/gaterules": "unit/host/test_gates.py",
    "core/extensions": "unit/lock/test_resolve.py",
    "core/lock": "unit/lock/test_lockdoc.py",
    "core/parts": "unit/trials/test_questions.py",
    "core/progress": "unit/cli/test_terminal.py",
    "core/schemas": "unit/spec/test_specfile.py",
    "core/spec": "unit/spec/test_specfile.py",
    "core/trusted": "unit/test_trusted_files.py",
    "engine/client": "refusals/test_nv515.py",
    "engine/container": "unit/serve/test_planner.py",
    "engine/containers": "unit/engine/test_engine.py",
    "evidence/alike": "unit/evidence/test_artifacts.py",
    "evidence/conclusion": "unit/evidence/test_sidebyside.py",
    "evidence/deciding": "unit/evidence/test_power.py",
    "evidence/looks": "unit/evidence/test_calibration.py",
    "evidence/records": "unit/evidence/test_directory.py",
    "fleet/leftovers": "unit/fleet/test_worker.py",
    "fleet/task_runner": "unit/fleet/test_worker.py",
    "fleet/testfiles": "unit/fleet/test_proofs.py",
    "fleet/cluster": "fleet/test_trials.py",
    "api": "unit/test_library.py",
    "bisect/answer": "unit/bisect/test_search.py",
    "bisect/inputs": "refusals/test_nv803.py",
    "image/assemble": "unit/image/test_builder.py",
    "export/mounted": "unit/export/test_export.py",
    "export/texts": "unit/export/test_export.py",
    "host/survey": "unit/serve/test_examination.py",
    "models/local": "unit/serve/test_examination.py",
    "port/conflicts": "unit/cli/test_port.py",
    "port/devrecord": "refusals/test_nv610.py",
    "port/devtree": "unit/cli/test_dev.py",
    "port/gitmerge": "unit/port/test_merge.py",
    "port/moves": "unit/port/test_merge.py",
    "port/written": "unit/cli/test_port.py",
    "serve/readable": "refusals/test_nv526.py",
    "image/variation": "unit/image/test_rebuild.py",
    "kernels/precompile": "series/test_kernels.py",
    "kernels/precompile38": "series/test_kernels.py",
    "layers/bytecompile": "unit/layers/test_bytecode.py",
    "lock/release_wheels": "unit/init/test_newproject.py",
    "lock/templates": "refusals/test_nv405.py",
    "patches/proofs": "refusals/test_nv108_proofs.py",
    "patches/series": "unit/patches/test_seriesfile.py",
    "runtime/proving": "unit/trials/test_verdict.py",
    "runtime/tiny_models": "unit/models/test_recipes.py",
    "serve/access": "refusals/test_nv604.py",
    "sources/worktree": "refusals/test_nv610.py",
    "spec/profile": "refusals/test_nv101.py",
    "spec/selection": "unit/cli/test_image_argument.py",
    "spec/speculative": "unit/serve/test_planner.py",
    "spec/waivers": "refusals/test_nv101.py",
    "trials/answers": "unit/trials/test_probing.py",
    "trials/artifact": "unit/bisect/test_artifacts.py",
    "trials/ending": "unit/bisect/test_driver.py",
    "trials/imagetests": "refusals/test_nv608.py",
    "trials/trial": "unit/bisect/test_problem.py",
}
"""Modules whose behaviour is tested under another name."""

MODULES = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")}


def mirrored(module: str) -> bool:
    """Return whether MODULE has tests of its own name; they may be several files, `test_MODULE_*.py`."""
    room, _, name = module.rpartition("/")
    return any(
        path.stem == f"test_{name}" or path.stem.startswith(f"test_{name}_")
        for path in (TESTS / "unit" / room).glob("*.py")
    )


def test_every_module_has_tests_of_its_name_or_a_row() -> None:
    without = {module for module in MODULES if not module.endswith("__init__") and not mirrored(module)}
    assert (sorted(without - set(ELSEWHERE)), sorted(set(ELSEWHERE) - without)) == ([], [])  # to add, to remove


def test_what_a_row_names_is_there() -> None:
    assert [name for name in ELSEWHERE.values() if not (TESTS / name).is_file()] == []
