# The workshop of nvllm. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON_TOOL = .venv/bin/python -m

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
unit: setup ## unit and refusal tests: no Docker, no GPU, a minute and a half
	$(PYTHON_TOOL) pytest tests/unit tests/refusals -m "not engine" -n 2 --dist worksteal

.PHONY: test
test: setup engine emulator ## every test; sets up what it needs
	$(PYTHON_TOOL) pytest tests/unit tests/refusals -m "not engine" -n 2 --dist worksteal
	$(PYTHON_TOOL) pytest tests/e2e tests/series tests/refusals -m "(engine or series) and not long" --durations=15

.PHONY: test-long
test-long: setup engine emulator ## what takes minutes, or hundreds of megabytes, each: bisects, compiled caches, whole images by Docker alone
	$(PYTHON_TOOL) pytest tests/e2e tests/series -m long --durations=15

.PHONY: test-bare
test-bare: ## the README's commands on a minimal Debian that is made for it; needs root, touches nothing of this machine
	@tools/bare.sh

.PHONY: test-engines
test-engines: setup ## nvllm on each Docker and Podman that packages give, in both image stores; root, minutes each
	$(PYTHON_TOOL) pytest tests/engines -m engines --durations=0

.PHONY: demo
demo: setup engine ## build, serve, one completion, bless, blessed serve, a tampered byte, the refusal
	@tools/demo.sh

.PHONY: bench
bench: setup engine ## print the README's figures
	$(PYTHON_TOOL) benchmarks

.PHONY: lint
lint: setup ## ruff, mypy and the order of the rooms
	$(PYTHON_TOOL) ruff check
	$(PYTHON_TOOL) ruff format --check
	$(PYTHON_TOOL) mypy
	.venv/bin/lint-imports --no-cache

.PHONY: format
format: setup ## lay the code out
	$(PYTHON_TOOL) ruff check --fix
	$(PYTHON_TOOL) ruff format

.PHONY: docs
docs: setup ## write docs/refusals.md from the catalogue, docs/schemas from the classes
	.venv/bin/python tools/refusal_docs.py docs/refusals.md
	.venv/bin/python tools/schemas.py docs/schemas

.PHONY: clean
clean: ## stop the engine that make started; remove .venv and caches of the tools
	@tools/engine.sh stop
	rm -rf .venv .engine .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find launcher tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
