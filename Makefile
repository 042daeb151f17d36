# Two commands for a newcomer, with nothing but Python 3.11, make and git:
#   make demo    a comparison over three seeds on real images, and its report
#   make test    the test suite
# Each makes its own environment in .venv, once. After that nothing here needs the network.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# A step of its own, first: whatever build of torch is chosen here stays. Elsewhere than on a machine whose index gives a CPU build,
# TORCH_OPTIONS may name one, e.g. make test TORCH_OPTIONS='--index-url ADDRESS'.
TORCH ?= torch==2.13.0
TORCH_OPTIONS ?=
TEST_EXTRAS := data,flower,learning,privacy,telemetry,dev
# Test processes: one a core, four at most; each uses one thread.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); if [ "$$n" -gt 4 ]; then echo 4; else echo "$$n"; fi)

DEMO := compare experiments/demo.toml --seeds 3 --html report-demo.html

VENV := .venv
BIN := $(VENV)/bin
# The environment belongs to this folder and to these two files: a copied folder, or other pins, make it stale.
HERE := $(shell printf '%s' '$(CURDIR)' | cksum | cut -d ' ' -f 1)
PINS := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
VENV_MADE := $(VENV)/.made-$(HERE)
RUN_READY := $(VENV)/.run-$(PINS)
TEST_READY := $(VENV)/.test-$(PINS)
INSTALL := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt

unexport PYTHONPATH PYTHONHOME
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow soak bench install lint format types imports check ci wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 20

$(VENV_MADE):
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fedaccord needs Python 3.11 or newer. Name it: make ... PYTHON=python3.11" >&2; exit 2; }
	@echo "Making $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUN_READY): $(VENV_MADE)
	@rm -f $(VENV)/.run-* $(VENV)/.test-*
	@echo "Installing torch"
	@$(INSTALL) $(TORCH_OPTIONS) $(TORCH)
	@echo "Installing fedaccord"
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(TEST_READY): $(RUN_READY)
	@echo "Installing what the tests need"
	@$(INSTALL) --no-build-isolation --editable '.[$(TEST_EXTRAS)]'
	@touch $@

demo: $(RUN_READY) ## compare methods over three seeds on real images and write a report (about three minutes)
	$(BIN)/fedaccord $(DEMO)

install: $(TEST_READY) ## the environment with everything for development

test: $(TEST_READY) ## the default tests, under ten minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not soak" -n $(WORKERS)

test-slow: $(TEST_READY) ## the slow tests, which CI runs as well
	$(BIN)/python -m pytest -m "alone and not soak"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not alone and not soak" -n $(WORKERS)

soak: $(TEST_READY) ## the tests that run for a long time, by hand
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak --timeout 0 || { code=$$?; test $$code -eq 5 && echo "no soak tests yet" || exit $$code; }

bench: $(TEST_READY) ## our runtimes beside naive code, the floor and other frameworks, as ratios (BENCH='--only W1 --blocks 7 --write')
	$(BIN)/python benchmarks/bench.py $(BENCH)

lint: $(TEST_READY) ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(TEST_READY) ## rewrite the code as the formatter has it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(TEST_READY) ## mypy
	$(BIN)/mypy

imports: $(TEST_READY) ## who may import whom
	$(BIN)/lint-imports

check: lint types imports ## lint, types and imports

ci: ## everything that CI runs
	.ci/run

wheel: $(TEST_READY) ## the wheel and the source archive, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

clean: ## remove the environment, builds and caches; runs stay
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
