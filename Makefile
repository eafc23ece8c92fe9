# One command each. Everything lives in .venv (environment) and build/ (native objects); `make clean` removes both.
# Stamps under .venv say what is installed, so a repeated call does nothing and a changed native source rebuilds.

PYTHON ?= python3
ARGS ?=
SEEDS ?= 2000
MINUTES ?= 10
KILLS ?= 200

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(shell find native CMakeLists.txt -type f \( -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.cmake' \) 2>/dev/null)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help env chat serve test fuzz load soak crash e2e matrix check oracle bench bench-serving docs clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: .venv/.built  ## The environment in .venv and the built core, nothing else

chat: env  ## Talk to SmolLM2 (fetched on the first start); ARGS="--model gemma3-270m" for options
	@$(BIN)/sojourn chat $(ARGS)

serve: env  ## Serve SmolLM2 over HTTP on 127.0.0.1:8000; ARGS="--model gemma3-270m --port 9000" for options
	@$(BIN)/sojourn serve $(ARGS)

test: env .venv/.test  ## All tests that need no reference implementation; ARGS="-k name" for options
	$(BIN)/python -m pytest -m "not oracle and not e2e and not matrix" $(ARGS)

fuzz: env .venv/.test  ## The simulators over SEEDS=2000 seeds (minutes); a seed that fails is written to tests/sim/seeds
	$(BIN)/python -m tests.sim.fuzz $(SEEDS) $(ARGS)

load: env .venv/.test  ## Every kind of caller, 64 at once, on a running server for MINUTES=10; ARGS="--seed 2"
	$(BIN)/python -m tests.load.run $(MINUTES) $(ARGS)

crash: env .venv/.test  ## kill -9 of a server under load, KILLS=200 times: nothing that was told is lost; ARGS="--seed 2"
	$(BIN)/python -m tests.crash.run $(KILLS) $(ARGS)

soak: MINUTES = 60
soak: env .venv/.test  ## Churn on a running server for MINUTES=60, its growth and its times measured; ARGS="--seed 2"
	$(BIN)/python -m tests.soak.run $(MINUTES) $(ARGS)

e2e: env .venv/.test  ## Random conversations on both models against stateless runs, bit for bit (minutes)
	$(BIN)/python -m pytest tests/e2e $(ARGS)

check: env .venv/.dev  ## Format, lint, types, import contracts, house laws
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/test_tidy.py

matrix: env .venv/.test  ## Every combination of overlap, drafts, pages, chunks and retractions, bit for bit (minutes)
	$(BIN)/python -m pytest tests/matrix $(ARGS)

oracle: env .venv/.test .venv/.oracle  ## Compare with transformers on the same weights (downloads torch)
	$(BIN)/python -m pytest -m oracle $(ARGS)

bench: env .venv/.bench  ## Compare speed with llama.cpp (compiles it, some minutes); writes benchmarks/results
	$(BIN)/python -m benchmarks.step $(ARGS)

bench-serving: env  ## What serving over HTTP costs (some minutes); writes benchmarks/results; ARGS="--only path"
	$(BIN)/python -m benchmarks.serving $(ARGS)

docs: env .venv/.docs  ## The documentation as a site, in build/docs; its figures are drawn from the code
	$(BIN)/python -m docs.figures
	$(BIN)/mkdocs build --quiet --site-dir build/docs

clean:  ## Remove .venv and build (models stay in the cache)
	rm -rf .venv build

# -- stamps ----------------------------------------------------------------------------------------------------------

.venv/.tools: tools/preflight.sh
	@tools/preflight.sh $(PYTHON)
	@echo "sojourn: creating .venv and installing the build tools"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --group build
	@touch $@

.venv/.built: .venv/.tools pyproject.toml $(NATIVE)
	@tools/preflight.sh $(BIN)/python
	@echo "sojourn: building the core and installing the package (a minute or two the first time)"
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

# An extra is installed by name on top of the built package; the package itself is not built again.
.venv/.test .venv/.dev .venv/.oracle .venv/.bench .venv/.docs: .venv/.%: pyproject.toml | .venv/.built
	@echo "sojourn: installing what 'make $*' needs"
	@$(BIN)/python tools/extra.py $* | xargs -d '\n' $(PIP) install
	@touch $@
