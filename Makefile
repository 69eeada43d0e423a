# Berth: every target does its own set-up. `make help` lists them.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test check properties oracle bench bench-allocation bench-cel bench-quality bench-e2e bench-hostile soak install-time chaos fuzz e2e pins release-check image clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement constraints.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: $(STAMP) ## run Berth on an embedded cluster with example workloads (ONCE=1 ends by itself)
	$(BIN)/berth run $(if $(ONCE),--once)

test: check ## lint, format, types and all tests
	$(BIN)/pytest

check: $(STAMP) ## lint, format and types only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

properties: $(STAMP) ## the property tests with thousands of random examples
	BERTH_HYPOTHESIS=long $(BIN)/pytest -m hypothesis --timeout=0

N ?= 20000
SEED ?= 1
oracle: $(STAMP) ## compare the search with brute force on N random worlds
	$(BIN)/python -m tests.oracle --worlds $(N) --seed $(SEED)

bench: $(STAMP) ## latency, memory and start-up, as ratios in one run
	$(BIN)/python -m benchmarks.serving

bench-allocation: $(STAMP) ## cost of allocating on one node, by shape and cluster size
	$(BIN)/python -m benchmarks.allocation

bench-cel: $(STAMP) ## CEL: speed against cel-python, masks of 40,000 devices, memory
	$(BIN)/python -m benchmarks.cel

bench-quality: $(STAMP) ## placement quality; TRACES=folder adds the published traces
	$(BIN)/python -m benchmarks.quality $(if $(TRACES),--traces $(TRACES))

bench-e2e: $(STAMP) ## pods per second against the in-tree plugin (BERTH_KUBE_BIN names a control plane's binaries)
	$(BIN)/python -m benchmarks.end_to_end

bench-hostile: $(STAMP) ## honest pods a second with and without a hundred hostile ones beside them
	$(BIN)/python -m benchmarks.hostile

EVENTS ?= 1000000
soak: $(STAMP) ## memory over EVENTS claim events on two fleets; fails where it grows after the first tenth
	$(BIN)/python -m benchmarks.soak --events $(EVENTS)

install-time: $(STAMP) ## commands and seconds from an empty control plane to the first pod bound (BERTH_KUBE_BIN)
	$(BIN)/python -m benchmarks.install

TIMES ?= 20
chaos: $(STAMP) ## kill and disturb real Berth processes, TIMES at every write point; judge the objects
	$(BIN)/python -m tests.chaos --seed $(SEED) --times $(TIMES)

EXAMPLES ?= 2000
fuzz: $(STAMP) ## garbage to every command, HTTP entry point and loader, EXAMPLES for each
	BERTH_FUZZ=$(EXAMPLES) $(BIN)/pytest tests/test_fuzz_*.py --timeout 0

e2e: $(STAMP) ## tests against a real control plane (BERTH_KUBE_BIN names its binaries)
	$(BIN)/pytest tests/e2e -s

pins: ## pin every distribution and its hashes again, after pyproject.toml changed
	$(PYTHON) -m venv build/pins
	build/pins/bin/pip install --quiet pip-tools
	build/pins/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --unsafe-package berth --extra dev --output-file constraints.txt pyproject.toml
	sed -i.bak "/^#/d;/^$$/d" constraints.txt && rm constraints.txt.bak  # drops the note that berth itself is not pinned

release-check: $(STAMP) ## the wheel in an empty environment; bill of materials and licences of what is installed, against the pins
	BERTH_CLEAN_INSTALL=1 $(BIN)/pytest tests/test_packaging.py
	$(BIN)/python .ci/release_check.py

image: ## build the container image
	docker build -t berth:$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' extender/__init__.py) .

clean: ## remove what the targets made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-results
