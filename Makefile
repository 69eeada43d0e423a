# Every target installs what it needs. `make help` lists the targets.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Without bytecode files, each process compiles all modules: the tests start more than a hundred processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run picture docs page-pictures reference test check properties oracle bench bench-allocation bench-gangs \
	bench-cel bench-quality bench-e2e bench-gangs-e2e bench-hostile soak install-time chaos fuzz \
	call-paths chart gpu-check e2e pins krew release-check image push clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# One sentence instead of pip's complaints about packages.
NEW_PYTHON = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
  echo "Berth needs Python 3.11 or newer, and $(PYTHON) is not. Name another: make PYTHON=python3.13" >&2; exit 2; }

# pip is not quiet: the first set-up takes a minute.
$(STAMP): pyproject.toml constraints.txt
	$(NEW_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --require-hashes --no-deps --requirement constraints.txt
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

run: $(STAMP) ## run Berth on an embedded cluster with example workloads (ONCE=1: end after them)
	$(BIN)/berth run $(if $(ONCE),--once)

picture: $(STAMP) ## draw the pictures of docs/img: `make run`, the diagrams, a replay and a tuning
	$(BIN)/python .ci/make_run_picture.py
	PYTHONPATH=. $(BIN)/python .ci/make_diagrams.py
	$(BIN)/berth replay examples/replay/jobs.csv --picture docs/img/replay.svg \
	  --nodes 2xa100-pcie-8-bridged,2xhgx-h100-8,8xgb200-nvl72-tray/4
	$(BIN)/berth tune examples/replay/two-products.csv --picture docs/img/tune.svg \
	  --nodes 2xa100-pcie-8-bridged,3xhgx-h100-8 --aim large-jobs

reference: $(STAMP) ## write the parts of docs/ that list policy, reasons, metrics, commands, HTTP API and rights
	$(BIN)/python .ci/make_reference.py
	$(BIN)/python .ci/make_rights.py

chart: $(STAMP) ## write what the Helm chart takes from the manifests (needs kubectl)
	PYTHONPATH=. $(BIN)/python .ci/make_chart.py

SITE := build/site-venv
docs: ## build the documents as a web site with search in build/site; fails for a broken link
	$(NEW_PYTHON)
	test -x $(SITE)/bin/mkdocs || { $(PYTHON) -m venv $(SITE) && \
	  $(SITE)/bin/pip install --quiet --require-hashes --no-deps --requirement .ci/site-constraints.txt; }
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python .ci/make_site.py

page-pictures: $(STAMP) ## write docs/img/page.png and page-pod.png (needs chromium)
	$(BIN)/python .ci/make_page_pictures.py

test: ## run lint, format, types and all tests, on all cores (about 4 minutes on two)
	@echo "make test takes about 4 minutes on two cores, and a minute more for the first set-up."
	@$(MAKE) --no-print-directory check
	$(BIN)/pytest --numprocesses auto --dist loadfile  # the tests of a file share what it sets up

check: $(STAMP) ## run lint, format and types only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

properties: $(STAMP) ## run the property tests with thousands of random examples
	BERTH_HYPOTHESIS=long $(BIN)/pytest -m hypothesis --timeout=0

N ?= 20000
SEED ?= 1
oracle: $(STAMP) ## compare the search and the gang planner with brute force on N random clusters
	$(BIN)/python -m tests.worlds.oracle --worlds $(N) --seed $(SEED)
	$(BIN)/python -m tests.worlds.gang_oracle --worlds $(N) --seed $(SEED)

bench: $(STAMP) ## measure latency, memory and start-up, as ratios in one run
	$(BIN)/python -m benchmarks.serving

call-paths: $(STAMP) ## count the functions and files that each request passes through (FUNCTIONS=1: list them)
	$(BIN)/python -m benchmarks.call_paths $(if $(FUNCTIONS),--functions)

bench-allocation: $(STAMP) ## measure the cost of one node's evaluation, by claim and cluster size, and of near devices
	$(BIN)/python -m benchmarks.allocation
	$(BIN)/python -m benchmarks.near_devices

bench-gangs: $(STAMP) ## measure planning and waking gangs of 256 pods on 5,000 nodes
	$(BIN)/python -m benchmarks.gangs

bench-cel: $(STAMP) ## measure CEL: speed against cel-python, masks of 40,000 devices, memory, prices
	$(BIN)/python -m benchmarks.cel
	$(BIN)/python -m benchmarks.cel_prices

bench-quality: SEEDS = 3
bench-quality: $(STAMP) ## make the tables of docs/quality.md; TRACES=folder adds the published traces, ONLY=title
	$(BIN)/python -m benchmarks.quality --seeds $(SEEDS) $(if $(TRACES),--traces $(TRACES)) $(if $(ONLY),--only $(ONLY))

bench-e2e: $(STAMP) ## measure pods/s against the in-tree plugin (BERTH_KUBE_BIN); CANDIDATES='1 8': time by plugin
	$(BIN)/python -m benchmarks.end_to_end $(if $(CANDIDATES),--candidates $(CANDIDATES))

bench-gangs-e2e: $(STAMP) ## measure the seconds to bind a gang of 64 pods, also in-tree (BERTH_KUBE_BIN)
	$(BIN)/python -m benchmarks.gang_end_to_end

bench-hostile: $(STAMP) ## measure normal pods per second with and without hostile pods and gangs
	$(BIN)/python -m benchmarks.hostile

EVENTS ?= 1000000
soak: $(STAMP) ## measure memory over EVENTS claim events on two fleets; fails if it grows
	$(BIN)/python -m benchmarks.soak --events $(EVENTS)

install-time: $(STAMP) ## measure the way from an empty control plane to the first bound pod (BERTH_KUBE_BIN)
	$(BIN)/python -m benchmarks.install

TIMES ?= 20
SEEDS ?= 500
chaos: $(STAMP) ## disturb two replicas in virtual time by SEEDS; kill real processes, TIMES at every write point
	BERTH_SEEDS=1:$(SEEDS) $(BIN)/pytest tests/bind/test_two_replicas.py
	$(BIN)/python -m tests.worlds.chaos --seed $(SEED) --times $(TIMES)

EXAMPLES ?= 2000
fuzz: $(STAMP) ## send garbage to every command, HTTP entry point and loader, EXAMPLES for each
	BERTH_FUZZ=$(EXAMPLES) $(BIN)/pytest tests/hostile/test_fuzz_*.py --timeout 0

gpu-check: $(STAMP) ## read this machine's GPUs, publish them to the embedded cluster and place a pod (NVIDIA driver)
	PYTHONPATH=. $(BIN)/python .ci/gpu_check.py

e2e: $(STAMP) ## run the tests against a real control plane and kubelet (BERTH_KUBE_BIN: folder of their binaries)
	$(BIN)/pytest tests/e2e -s

pins: ## pin every distribution and its hashes again, after a change of pyproject.toml
	$(NEW_PYTHON)
	$(PYTHON) -m venv build/pins
	build/pins/bin/pip install --quiet pip-tools
	build/pins/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --unsafe-package berth --extra dev --output-file constraints.txt pyproject.toml
	sed -i.bak "/^#/d;/^$$/d" constraints.txt && rm constraints.txt.bak  # removes the note that berth itself is not pinned

krew: $(STAMP) ## write the krew plugin of the wheel in dist/, for an archive at URL: make krew URL=https://HOST/FOLDER
	$(BIN)/python .ci/make_krew.py dist $(URL)

release-check: $(STAMP) ## test the wheel alone; check versions and licences; write the bill of materials
	BERTH_CLEAN_INSTALL=1 $(BIN)/pytest tests/install/test_packaging.py
	$(BIN)/python .ci/release_check.py

# The image's name and tag as the manifests have them, and the program that builds it.
IMAGES := manifests/images/kustomization.yaml
FIELDS := ^- {name: berth, newName: \([^,]*\), newTag: \([^,}]*\)}$$
IMAGE = $(or $(shell sed -n 's/$(FIELDS)/\1:\2/p' $(IMAGES)),$(error $(IMAGES) has no line {name: berth, …, newTag: …}))
ENGINE ?= docker
image: ## build the container image that manifests/images names (ENGINE=podman)
	$(ENGINE) build --tag $(IMAGE) .

push: ## push the container image to the registry that manifests/images names (ENGINE=podman)
	@case $(IMAGE) in */*) ;; *) echo "$(IMAGES): newName of berth names no registry: $(IMAGE)" >&2; exit 2;; esac
	$(ENGINE) push $(IMAGE)

clean: ## remove the files that the targets made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-results
