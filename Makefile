# `make run` and `make test` need only make and Python 3.11 to 3.13.
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# The newest Python that really starts (a version manager's shim may not) and can make virtual environments.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; \
	then command -v $$python; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help run report test test-all smoke related bench bench-peers referee gpu-check golden check lint types format docs site clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-11s %s\n", $$1, $$2}'

run: $(VENV)/.installed ## run the default experiment; more: make run ARGS="algorithm=fedavg rounds=20"
	@$(BIN)/python -m fedlab_runner.train $(ARGS)

report: $(VENV)/.installed ## a page of what is in outputs/; more: make report ARGS="outputs/sweeps/<id> --experiment feddle/table7"
	@$(BIN)/python -m fedlab_runner.report.cli $(ARGS)

test: $(VENV)/.installed-test ## run the test suite; more: make test ARGS="-k config"
	@$(BIN)/python -m pytest -n auto $(ARGS)

test-all: $(VENV)/.installed-test ## run the suite with the slow tests (minutes, package index)
	@$(BIN)/python -m pytest -n auto -m "slow or not slow" $(ARGS)

smoke: $(VENV)/.installed-test ## run random combinations of all choices; more: make smoke ARGS="--count 300 --seed 7"
	@$(BIN)/python -m tests.helpers.smoke $(ARGS)

related: $(VENV)/.installed-test ## compare runs of random combinations: killed, extended, in processes; more: make related ARGS="--count 300"
	@$(BIN)/python -m tests.helpers.relations $(ARGS)

bench: $(VENV)/.installed ## time the package beside a plain PyTorch loop; more: make bench ARGS="--only W2 --out bench.json"
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.run $(ARGS)

bench-peers: $(VENV)/.installed ## time Flower, pfl and FedLab beside it (package index); more: make bench-peers ARGS="--only W1"
	@$(BIN)/python -m benchmarks.peers.run --folder $(VENV)/peers $(ARGS)

referee: $(VENV)/.installed ## compare the methods with others' code (package index); more: make referee ARGS="--only fluke"
	@$(BIN)/python -m tests.referee.run $(ARGS)

gpu-check: $(VENV)/.installed-test ## prove the package on a GPU in ten minutes; more: make gpu-check ARGS="--only resume --minutes 8"
	@$(BIN)/python -m benchmarks.gpu_check $(ARGS)

golden: $(VENV)/.installed-test ## rewrite the recorded curves in tests/golden; look at the diff before committing it
	@FEDLAB_REWRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/algorithms/test_golden.py

check: test lint types ## all that must hold before a change is merged

lint: $(VENV)/.installed-test ## check style, format and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.installed-test ## check types
	@$(BIN)/mypy

format: $(VENV)/.installed-test ## rewrite the files in the one format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed ## rewrite docs/reference and docs/referee.md from the code, the configs and the tests
	@$(BIN)/python -m docs.generate.reference
	@$(BIN)/python -m docs.generate.referee

site: $(VENV)/.installed-docs ## build the documentation site; open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

clean: ## remove the environment and caches (not outputs/)
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 with venv found; install one or: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp is younger than pyproject.toml exactly when the environment was installed from it.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@ $(VENV)/.installed
