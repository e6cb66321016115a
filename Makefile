# From a bare machine (Python 3.11 and make) to a running service, and everything a developer does daily.
PYTHON := $(shell for p in python3.11 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
SETUP := constraints.txt pyproject.toml clients/python/pyproject.toml
# The tests are independent of each other, each with its own queues and servers, and wait more than they work: five at
# a time keep two cores busy.
JOBS ?= 5
ARGS ?=
# Each has its part, in which tests that share fixtures stand together, and who is done takes from others' (see
# tests/harness/order.py).
SIDE_BY_SIDE := -n $(JOBS) --dist worksteal
# A shared machine may pause for longer than a test allows: what fails is tried once more, and the summary names it.
SECOND_TRY := --reruns 1 --reruns-delay 1 -r aR

# The drivers of the clients are built before the tests, which know by this that they are.
CONFORMANCE_RUN := $(or $(CONFORMANCE_RUN),$(shell date +%s)-$(shell echo $$PPID))
export CONFORMANCE_RUN
# What Python compiles is kept: else the service is compiled at each start, and the tests by each of their processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test check conformance lint types gen verify baseline bench bench-peers bench-peers-setup bench-watch bench-abuse bench-eta soak stateful rolling truth mutants test-cluster test-image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.run-stamp ## set up and serve (ARGS="--listen 127.0.0.1:7421" adds flags)
	@exec $(BIN)/headwayd serve $(ARGS)

test: $(VENV)/.dev-stamp ## everything: verify, lint, types, all tests on every store
	@$(MAKE) --no-print-directory verify lint types
	cd tests && ../$(BIN)/python -m conformance.build
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --stores=valkey,redis $(SECOND_TRY) $(ARGS)

EVERYDAY := tests/unit tests/properties tests/wire
check: $(VENV)/.dev-stamp ## the everyday part: lint, types, layers, what needs no more than a service and a store; under two minutes
	@$(MAKE) --no-print-directory lint types
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --stores=valkey -m "not slow and not long" $(EVERYDAY) $(ARGS)

conformance: $(VENV)/.dev-stamp ## every client whose toolchain is here plays the same scenarios; prints the table (ARGS="--languages=go")
	$(BIN)/python -m pytest tests/conformance $(SIDE_BY_SIDE) --conformance-table $(ARGS)

lint: $(VENV)/.dev-stamp ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-stamp ## mypy, strict
	$(BIN)/mypy

gen: $(VENV)/.dev-stamp ## regenerate what is generated: stubs, docs/configuration.md, and the chart's schema, table and dashboard
	$(BIN)/python tools/generate.py

verify: $(VENV)/.dev-stamp ## what is generated is up to date; the schema is clean and breaks nobody; layers hold
	$(BIN)/python tools/generate.py --check
	$(BIN)/python tools/constraints.py
	$(BIN)/python tools/versions.py
	cd proto && ../$(BIN)/buf lint
	cd proto && ../$(BIN)/buf format --diff --exit-code
	cd proto && ../$(BIN)/buf breaking --against baseline.binpb
	$(BIN)/lint-imports

baseline: $(VENV)/.dev-stamp ## accept the schema as the one not to break; deliberate, say why in the commit
	cd proto && ../$(BIN)/buf build -o baseline.binpb

bench: $(VENV)/.dev-stamp ## measure scripts, waiting, due times, client, ceilings, latency, memory, overload, metrics, traces, callers; nearly an hour (ARGS="--markdown FILE")
	cd tests && ../$(BIN)/python -m bench.scripts
	cd tests && ../$(BIN)/python -m bench.waiting
	cd tests && ../$(BIN)/python -m bench.due
	cd tests && ../$(BIN)/python -m bench.client
	cd tests && ../$(BIN)/python -m bench.ceiling $(ARGS)
	cd tests && ../$(BIN)/python -m bench.latency $(ARGS)
	cd tests && ../$(BIN)/python -m bench.memory $(ARGS)
	cd tests && ../$(BIN)/python -m bench.overload
	cd tests && ../$(BIN)/python -m bench.metrics
	cd tests && ../$(BIN)/python -m bench.tracing
	cd tests && ../$(BIN)/python -m bench.callers
	cd tests && ../$(BIN)/python -m bench.dashboard

bench-peers: $(VENV)/.dev-stamp ## measure Headway beside other queues; hours (ARGS="--messages 20000 --runs 2" for a first look)
	cd tests && ../$(BIN)/python -m bench.peers.run $(ARGS)

bench-peers-setup: $(VENV)/.dev-stamp ## install the other queues, and their clients outside the project; as root, also packages
	$(BIN)/python tests/bench/peers/install.py

bench-watch: $(VENV)/.dev-stamp ## measure watching and standing in line, by the ten thousand; prints tables; a quarter of an hour
	cd tests && ../$(BIN)/python -m bench.watching
	cd tests && ../$(BIN)/python -m bench.events
	cd tests && ../$(BIN)/python -m bench.standing
	cd tests && ../$(BIN)/python -m bench.position

bench-abuse: $(VENV)/.dev-stamp ## measure what others notice of clients that abuse the service; prints a table; five minutes
	cd tests && ../$(BIN)/python -m bench.abuse $(ARGS)

bench-eta: $(VENV)/.dev-stamp ## measure how true estimated waits are, beside the formulas of others; two minutes
	cd tests && ../$(BIN)/python -m bench.eta $(ARGS)

soak: $(VENV)/.dev-stamp ## ten minutes of several services and clients that misbehave; every message accounted for
	HEADWAY_SOAK_S=300 $(BIN)/python -m pytest tests/soak --stores=valkey -s

stateful: $(VENV)/.dev-stamp ## the model and the scripts, 200,000 steps and more on each store; half an hour and more
	HEADWAY_STATEFUL_EXAMPLES=$${HEADWAY_STATEFUL_EXAMPLES:-2200} \
		$(BIN)/python -m pytest tests/stateful $(SIDE_BY_SIDE) --stores=valkey,redis $(ARGS)

test-cluster: $(VENV)/.dev-stamp ## Sentinels and a cluster on loopback: primaries fail and slots move under load; four minutes
	HEADWAY_CLUSTER=all $(BIN)/python -m pytest tests/cluster -n 2 --stores=valkey,redis $(SECOND_TRY) $(ARGS)

test-image: $(VENV)/.dev-stamp ## build the image without an engine and serve from it; needs buildah and root; one minute
	$(BIN)/python -m pytest tests/image $(ARGS)

rolling: $(VENV)/.dev-stamp ## three services under load, each restarted ten times: no call fails, no lease is left; then with each client; ten minutes
	HEADWAY_ROLLING_ROUNDS=$${HEADWAY_ROLLING_ROUNDS:-10} \
		$(BIN)/python -m pytest tests/faults/test_rolling_restart.py --stores=valkey $(ARGS)
	HEADWAY_ROLLING_ROUNDS=$${HEADWAY_ROLLING_ROUNDS:-2} \
		$(BIN)/python -m pytest tests/conformance/test_rolling.py --stores=valkey $(ARGS)

truth: $(VENV)/.dev-stamp ## 1,000,000 operations while others watch: every position sent must be the store's; half an hour
	HEADWAY_TRUTH_OPS=$${HEADWAY_TRUTH_OPS:-1000000} $(BIN)/python -m pytest tests/truth --stores=valkey -s $(ARGS)

mutants: $(VENV)/.dev-stamp ## break the service on purpose, defect by defect: a named test must notice each; a quarter of an hour
	cd tests && ../$(BIN)/python -m mutants.run $(ARGS)

clean: ## remove the virtual environments and everything built
	rm -rf clients/*/node_modules clients/*/build clients/*/dist clients/*/target
	rm -rf $(VENV) .bench-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Headway needs Python 3.11 or newer" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: $(SETUP) | $(VENV)/bin/python
	$(PIP) -e 'clients/python[cli]' -e .
	@touch $@

$(VENV)/.dev-stamp: $(SETUP) tools/helm.py tools/helm.txt | $(VENV)/bin/python
	$(PIP) -e 'clients/python[cli]' -e '.[dev]'
	$(BIN)/python tools/helm.py
	@touch $(VENV)/.run-stamp $@
