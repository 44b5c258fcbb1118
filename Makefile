# Every target works from a fresh clone. All but `e2e`, `corpus`, `realnode`, `cluster` and `node` need Python 3.11+ and
# PyPI alone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
SYNCED := .venv/.synced
# Further arguments for pytest: make test ARGS="-k probes -x"
ARGS ?=
# Inputs that make fuzz tries for each target: make fuzz RUNS=1000000 ARGS=commands
RUNS ?= 2000
# How long make differential begins new rounds: make differential SECONDS=7200 ARGS="--seed 1000"
SECONDS ?= 60
# How long make overload asks too much of each server; every other hardship takes a sixth of it
MINUTES ?= 60

# Without worksteal, all the long waits of one file would fall to one process, and the others would end before it.
UNIT := -m "not lint and not e2e and not realnode and not servers and not overload and not vllm and not fips" -n auto --dist worksteal -q

# A TLS client reads all authorities of the machine in 45 ms of CPU, and aiohttp makes two at its import. No unit test
# asks a server that any of them has signed, so it reads one, whose key was not kept.
FEW_AUTHORITIES := SSL_CERT_FILE="$(CURDIR)/tests/authority.pem" SSL_CERT_DIR=/dev/null

export UV_PYTHON_DOWNLOADS := never
export PYTHONUNBUFFERED := 1
# Without compiled files every process that a test starts would compile the whole tree: a sixth of all CPU time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(SYNCED) ## make .venv with exactly what uv.lock says
	@true

$(SYNCED): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say make PYTHON=python3.12, for example.")'
	@echo "Setting up .venv: uv from PyPI, then the packages of uv.lock (200 MB; 20 s to 2 minutes, once)."
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --progress-bar on --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv sync --frozen
	@touch $@

.PHONY: demo
demo: $(SYNCED) ## show what the webhook does to the examples; no cluster needed
	@echo "Starting the webhook on 127.0.0.1 and sending it the examples (about 10 seconds)."
	@$(BIN)/python -m examples.demo $(ARGS)

.PHONY: test
test: $(SYNCED) ## all tests but the end-to-end ones
	@echo "Running the unit tests, two processes for each processor (3 to 6 minutes on two); a dot is a passed test."
	@$(FEW_AUTHORITIES) $(BIN)/pytest $(UNIT) $(ARGS)
	@echo "Next: make lint for style, types and generated files; make e2e for a real control plane (needs Go)."

.PHONY: coverage
coverage: $(SYNCED) ## the same tests, with branch coverage and its floor
	@$(FEW_AUTHORITIES) $(BIN)/pytest $(UNIT) --cov --cov-report=term:skip-covered $(ARGS)

.PHONY: anywhere
anywhere: $(SYNCED) ## the tests that touch files: other paths, file systems, umask and user, and twice at the same time
	@.ci/anywhere

.PHONY: pythons
pythons: $(SYNCED) ## the same tests under every newer Python that uv finds
	@.ci/pythons $(ARGS)

.PHONY: lint
lint: $(SYNCED) ## ruff, mypy, import contracts, generated documents, docstrings, plain English
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m release.docs --check
	@$(BIN)/python -m release.chart --check
	@$(BIN)/python -m release.version --check
	@$(BIN)/pytest -m lint -q tests/test_english.py tests/test_packages.py

.PHONY: fuzz
fuzz: $(SYNCED) ## feed the readers of users' texts with made-up ones; RUNS for each target
	@$(BIN)/uv sync --frozen --quiet --inexact --group fuzz
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && cd "$$scratch" && PYTHONPATH=$(CURDIR) $(CURDIR)/$(BIN)/python -m tests.fuzz --runs $(RUNS) $(ARGS)

.PHONY: differential
differential: $(SYNCED) ## compare the fast path with the engine; SECONDS=7200 does it for two hours
	@$(BIN)/python -m tests.differential --seconds $(SECONDS) $(ARGS)

.PHONY: bench
bench: $(SYNCED) ## measure; ARGS names one benchmark
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: golden
golden: $(SYNCED) ## rewrite the golden files from what the code does now; review the diff
	@$(BIN)/pytest tests/policies tests/incidents tests/servers/test_verified.py tests/servers/test_noticed.py tests/webhook/manifests/test_api_fields.py --update-golden -q $(ARGS)

.PHONY: corpus
corpus: $(SYNCED) ## review what other projects publish in their Go modules; ARGS=--update-golden rewrites what is held
	@$(BIN)/pytest tests/corpus -q $(ARGS)

.PHONY: docs
docs: $(SYNCED) ## rewrite the generated pages of docs/
	@$(BIN)/python -m release.docs

.PHONY: chart
chart: $(SYNCED) ## rewrite the Helm chart's templates from manifests/
	@$(BIN)/python -m release.chart

.PHONY: binaries
binaries: $(SYNCED) ## build the programs that e2e tests start (minutes, once; needs Go 1.26+)
	@$(BIN)/python -m tests.e2e.binaries >/dev/null
	@$(BIN)/python -m tests.e2e.puller.venvs >/dev/null

.PHONY: images
images: $(SYNCED) ## build the images of the real node (two minutes after a change)
	@$(BIN)/python -m tests.e2e.node true

.PHONY: e2e
e2e: apiserver $(if $(ARGS),,realnode) ## end-to-end tests against a real kube-apiserver, then on a real node

OPERATORS := leaderworkerset jobset worker_names_kuberay kueue mpi_operator training_operator argo_workflows argo_rollouts trainer kserve
.PHONY: e2e-operators
e2e-operators: $(SYNCED) ## the end-to-end tests with real operators; CI runs those of the first three files
	@$(BIN)/pytest -m e2e -q $(OPERATORS:%=tests/e2e/test_%.py) $(ARGS)

.PHONY: apiserver
apiserver: binaries # two processes, each with a control plane: the tests mostly wait
	@$(BIN)/pytest -m "e2e and not operators and not scheduled" -n 2 --dist loadfile -q $(ARGS)

# Two processes, each in the namespaces of a node. In the order of their names, the files that use most of the CPU
# run next to those that mostly wait.
ON_TWO_NODES := --tx '2*popen//python=$(BIN)/python -m tests.e2e.node $(BIN)/python' \
  --dist loadfile --no-loadscope-reorder

.PHONY: realnode
realnode: binaries images ## the end-to-end tests on a real node (needs root, cgroup v1 and Debian's packages)
	@$(BIN)/pytest -m "realnode and not scheduled" -q tests/realnode $(ON_TWO_NODES) $(ARGS)

.PHONY: scheduled
scheduled: binaries images ## the end-to-end tests that CI has no time for: an hour (needs what realnode needs)
	@$(BIN)/pytest -m "e2e and scheduled" -q $(ARGS)
	@$(BIN)/pytest -m "realnode and scheduled" -q tests/realnode $(ON_TWO_NODES) $(ARGS)

.PHONY: evidence
evidence: binaries images ## write docs/evidence.md from a run on a real node
	@figures=$$(mktemp -d) && trap 'rm -rf "$$figures"' EXIT \
	&& CHASSIS_EVIDENCE=$$figures $(BIN)/pytest -m realnode -q tests/realnode $(ON_TWO_NODES) \
	&& $(BIN)/python -m tests.realnode.evidence "$$figures"

.PHONY: servers
servers: $(SYNCED) ## every preset against the real server from PyPI, recorded for docs/probes.md (needs root)
	@$(BIN)/pytest -m servers -q tests/servers $(if $(ARGS),$(ARGS),--record)

.PHONY: overload
overload: $(SYNCED) ## healthy servers that have it hard for hours, none to be restarted (needs root, cgroup v1; ARGS="-k mlserver" MINUTES=20)
	@$(BIN)/pytest -m overload -n 10 --dist load --maxschedchunk=1 -q tests/servers/test_overload.py --record --minutes $(MINUTES) $(ARGS)

.PHONY: upgrades
upgrades: binaries ## upgrades and rollbacks between recorded releases, by every installer (CI tries two of them)
	@CHASSIS_UPGRADES=all $(BIN)/pytest -m e2e -q tests/e2e/test_upgrade.py $(ARGS)

COMPATIBILITY := install policy rules probes worker_names reinvocation emergency_exit drift
.PHONY: compatibility
compatibility: binaries ## what needs only an API server, against older and newer ones (builds each once, in minutes)
	@for release in $$($(BIN)/python -c 'from tests.e2e.binaries import RELEASES; print(*RELEASES)'); do \
	  $(BIN)/python -m tests.e2e.binaries kube-apiserver-$$release \
	  && CHASSIS_KUBERNETES=$$release $(BIN)/pytest -m e2e -q $(COMPATIBILITY:%=tests/e2e/test_%.py) $(ARGS) || exit 1; \
	done

.PHONY: version
version: $(SYNCED) ## write the version of pyproject.toml wherever it is stated
	@$(BIN)/python -m release.version

.PHONY: release
release: $(SYNCED) ## build what users download into dist/; ARGS="--base python:3.11-slim-bookworm@sha256:…" or --no-images
	@$(BIN)/python -m release $(ARGS)

.PHONY: release-check
release-check: $(SYNCED) ## build the release twice, images included, and compare (needs root and Debian's packages)
	@$(BIN)/python -m tests.e2e.node.release_check $(ARGS)

.PHONY: vllm
vllm: $(SYNCED) ## the liveness probe of a real vLLM, hung and loaded in every way (up to two hours; ARGS="-m ci_vllm": ten minutes)
	@$(BIN)/pytest -m vllm -q tests/vllm $(ARGS)

.PHONY: fips
fips: $(SYNCED) ## the webhook and the puller with only a FIPS provider behind their TLS (builds OpenSSL's in minutes, once)
	@$(BIN)/pytest -m fips -q tests/fips $(ARGS)

.PHONY: cluster
cluster: $(SYNCED) ## the same control plane with the webhook installed, to play with until Ctrl-C
	@$(BIN)/python -m tests.e2e.cluster

.PHONY: node
node: $(SYNCED) ## a real node: the image in containers, behind its Service, to play with until Ctrl-C
	@$(BIN)/python -m tests.e2e.node

.PHONY: clean
clean: ## remove .venv and the caches in the tree
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
