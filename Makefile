# The workshop of nvllm. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON_TOOL = .venv/bin/python -m
NIX_PACKAGES = nix:nix-bin busybox:busybox-static git:git

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## make .venv from requirements-dev.txt; quick when it is there
	@tools/setup.sh

.PHONY: engine
engine:
	@tools/engine.sh start

.PHONY: emulator
emulator:
	@tools/emulator.sh

.PHONY: unit
unit: setup ## unit and refusal tests: no Docker, no GPU, no mypy
	$(PYTHON_TOOL) pytest tests/unit tests/refusals tests/fuzz -m "not engine and not thorough and not long" -n 2 --dist worksteal

.PHONY: fuzz
fuzz: setup ## files, answers and command lines of others at random, CASES=2000 of each kind; guided too if atheris is installed
	CASES=$(or $(CASES),2000) $(PYTHON_TOOL) pytest tests/fuzz --hypothesis-profile=fuzz -n 2 --dist worksteal
	.venv/bin/python tests/fuzz/guided.py --seconds $(or $(SECONDS_EACH),10)

.PHONY: test
test: setup engine emulator measure ## every test; sets up what it needs
	$(PYTHON_TOOL) pytest tests/unit tests/refusals tests/fuzz -m "not engine and not long" -n 2 --dist worksteal
	$(PYTHON_TOOL) pytest tests/e2e tests/series tests/refusals -m "(engine or series) and not long" \
		-n 2 --dist loadfile --no-loadscope-reorder --durations=15

.PHONY: mutants
mutants: setup ## small changes to the module ROOM=cache/staging that its unit tests miss; SAMPLE=40, TESTS=...; needs cosmic-ray
	.venv/bin/python tools/mutants.py $(ROOM) $(or $(SAMPLE),40) $(TESTS)

.PHONY: test-long
test-long: setup engine emulator ## what takes minutes, or hundreds of megabytes, each: simulations, bisects, compiled caches, whole images by Docker alone
	@tools/packages.sh nix $(NIX_PACKAGES)
	$(PYTHON_TOOL) pytest tests/unit -m long -n 2 --dist worksteal
	$(PYTHON_TOOL) pytest tests/e2e tests/series tests/nix -m long --durations=15

.PHONY: torture
torture: setup engine ## thousands of hostile requests to an eager, a compiled and a blessed engine; writes docs/torture.md
	$(PYTHON_TOOL) pytest tests/torture -m torture -s $(if $(ENGINES),-k "$(ENGINES)")

.PHONY: test-bare
test-bare: ## the README's commands on a minimal Debian that is made for it; needs root, touches nothing of this machine
	@tools/bare.sh

.PHONY: test-engines
test-engines: setup ## nvllm on each Docker and Podman that packages give, in both image stores; root, minutes each
	$(PYTHON_TOOL) pytest tests/engines -m engines --durations=0

.PHONY: test-gpu
test-gpu: ## the patched engine on this machine's GPU; PLACE is what `python -m gpu.lay` laid out, see docs/gpu.md
	PYTHONPATH=launcher:tests:.:$(PLACE)/tool python3 -m gpu.run $(PLACE) --output $(or $(OUTPUT),gpu-results.json) --commit $(shell git rev-parse HEAD)

.PHONY: test-gpu-containers
test-gpu-containers: ## nvllm on Docker and Podman of packages with this GPU; PLACE and OUTPUT as for test-gpu; root
	PYTHONPATH=launcher:tests:tests/series/probes:launcher/nvllm/runtime:.:$(PLACE)/tool unshare --net \
		python3 -m gpu.containers $(PLACE) --output $(or $(OUTPUT),gpu-containers.json) --commit $(shell git rev-parse HEAD)

.PHONY: test-nix
test-nix: setup ## the flake by a real Nix, in a store of its own, with a stub for nixpkgs; root
	@tools/packages.sh nix $(NIX_PACKAGES)
	$(PYTHON_TOOL) pytest tests/nix -m "nix and not long" --durations=0

.PHONY: test-fleet
test-fleet: setup engine ## images and blessings through a real registry, to a second engine; trials on a Ray cluster and by Slurm; TESTS=FILE for one; root
	@tools/packages.sh fleet docker-registry:docker-registry skopeo:skopeo \
		slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client
	$(PYTHON_TOOL) pip install -qq --disable-pip-version-check --require-hashes --no-deps -r requirements-ray.txt
	$(PYTHON_TOOL) pytest tests/fleet$(if $(TESTS),/$(TESTS)) -m fleet --durations=0

.PHONY: demo
demo: setup engine ## build, serve, one completion, bless, blessed serve, a tampered byte, the refusal
	@tools/demo.sh

.PHONY: bench
bench: setup engine ## print the figures of docs/benchmarks.md
	$(PYTHON_TOOL) benchmarks

.PHONY: bench-bisect
bench-bisect: setup ## how often a flaky bisect is wrong if builds differ: RUNS=300 searches a row; AGAINST=REV beside REV
	rm -rf .against && mkdir -p .against
	.venv/bin/python benchmarks/artifact_tables.py search this 0 $(or $(RUNS),300) .against/this.jsonl
	$(if $(AGAINST),mkdir .against/tests && cp -r benchmarks .against && cp -r tests/support .against/tests)
	$(if $(AGAINST),git archive $(AGAINST) launcher tests/support/bisect_world.py | tar -x -C .against)
	$(if $(AGAINST),PYTHONPATH=.against/launcher .venv/bin/python .against/benchmarks/artifact_tables.py search \
		$(AGAINST) 0 $(or $(RUNS),300) .against/other.jsonl)
	.venv/bin/python benchmarks/artifact_tables.py tables .against/*.jsonl

.PHONY: lint
lint: setup ## ruff, mypy and the order of the rooms
	$(PYTHON_TOOL) ruff check
	$(PYTHON_TOOL) ruff format --check
	$(PYTHON_TOOL) mypy
	.venv/bin/lint-imports --no-cache

.PHONY: measure
measure: ## the size of the package, and its comments
	@python3 tools/measure.py

.PHONY: format
format: setup ## lay the code out
	$(PYTHON_TOOL) ruff check --fix
	$(PYTHON_TOOL) ruff format

.PHONY: docs
docs: setup ## write what is generated: docs/refusals.md, docs/schemas, docs/reference
	.venv/bin/python tools/refusal_docs.py docs/refusals.md
	.venv/bin/python tools/schemas.py docs/schemas
	.venv/bin/python tools/trusted_files.py docs/trusted-files.md
	.venv/bin/python tools/reference.py

.PHONY: examples
examples: setup ## record the documents of --json again from the tests, ten minutes; then `make docs`
	.venv/bin/python tools/examples.py

.PHONY: screens
screens: setup ## record docs/screens again; ENGINE=1 also records build, serve and bless
	.venv/bin/python tools/screens.py $(if $(ENGINE),--engine)

.PHONY: site
site: setup ## build the pages as a site, .site/html; a warning is an error
	.venv/bin/python tools/site/build.py

.PHONY: matrix
matrix: setup ## the unit and refusal tests under Python 3.11 to 3.14; says which could not be had
	tools/matrix.sh $(VERSIONS)

.PHONY: records
records: setup ## run SUITE=long, engines, fleet, gpu, matrix or fuzz, and write its row into docs/records.md; WITH="NAME=VALUE" for a part
	.venv/bin/python tools/records.py $(SUITE) $(WITH)

.PHONY: audit
audit: setup ## known vulnerabilities in the packages of requirements-dev.txt; says if the database cannot be reached
	@tools/audit.sh

.PHONY: release-check
release-check: setup ## what docs/releasing.md asks before a tag: clean tree, changelog, wheel, installed wheel, twine
	tools/release-check.sh

.PHONY: clean
clean: ## stop the engine that make started; remove .venv and caches of the tools
	@tools/engine.sh stop
	rm -rf .venv .engine .demo .site .matrix .fuzz .torture .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find launcher tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
