# Every target sets up what it needs in $(VENV); `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The newest of the supported interpreters that is there; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$python"; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

# Processes of `make test`, three more than processors, at most 8: some of them wait for a timeout of
# a daemon or for a process most of the time.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 5 ? cores + 3 : 8)))

# Figures of `make bench-peers`, of all rounds.
PEERS ?= build/peers.json

# Where install-systemd puts things: systemd/install describes these.
export PREFIX DESTDIR BINDIR SYSCONFDIR

# Builds of source distributions are held to the same versions as what is installed. An older pip
# reads the first name for them, a newer one the second. pip splits a path at blanks, but no URL.
export PIP_CONSTRAINT := $(shell $(or $(PYTHON),false) -c \
	'from pathlib import Path; print(Path("constraints.txt").absolute().as_uri())')
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What builds the project (hatchling, editables) and PySpark's source distribution (setuptools, wheel).
BUILD_TOOLS := hatchling editables setuptools wheel

# It knows dependency groups; the pip of a new environment may be older.
PIP := 'pip>=25.1'

# The demonstration without Spark needs no Spark.
DEMO_NEEDS := $(if $(findstring --no-spark,$(ARGS)),$(VENV)/.ready-base,$(VENV)/.ready)

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | \
		sed -E 's/^([a-z-]+):.*## (.*)$$/  make \1|\2/' | column -t -s '|'

$(VENV)/bin/python:
	@if test -z "$(PYTHON)"; then \
		echo "make: needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; fi
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# What the programs need, and nothing more.
$(VENV)/.ready-base: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[daemon,cli,forwarder]'
	touch $@

# All of it: programs, Spark, tools.
$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "setting up $(VENV): Spark is large, this takes a few minutes once"
	$(BIN)/python -m pip install --quiet --upgrade $(PIP)
	$(BIN)/pip install --quiet --editable '.[all]' --group dev
	touch $@ $(VENV)/.ready-base

# The native leaves, beside their sources; without a compiler all works without them.
NATIVE := fastjournal/_native
$(VENV)/.native: hatch_build.py $(wildcard $(NATIVE)/*.[ch]) | $(VENV)/.ready
	$(BIN)/python hatch_build.py && touch $@ || test $$? = 69

# What runs the project needs both.
READY := $(VENV)/.ready $(VENV)/.native

.PHONY: venv
venv: $(READY) ## set up .venv: programs, Spark and tools, in the pinned versions

.PHONY: demo
demo: $(DEMO_NEEDS) ## the whole path on real data, about a minute; ARGS=--no-spark: half of it, without Spark
	@echo "make demo takes about a minute on two quiet processors; the short form is make demo ARGS=--no-spark"
	$(BIN)/fj-cli demo --events examples/demo/page-changes.tsv.gz $(ARGS)

.PHONY: demo-failover
demo-failover: $(READY) ## kill a primary under load; a standby takes over from an object store: under a minute
	$(BIN)/python -m tests.soak.failover_demo $(ARGS)

.PHONY: test
test: $(READY) ## run the tests; ARGS="-k word" chooses some, test-unit (or -docs, ...) one tier
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS)

test-%: $(READY)
	$(MAKE) test ARGS="tests/$* $(ARGS)"

# Modules with sanitizers, in a directory of their own. Each object of Python is an allocation of its
# own, so that the address sanitizer sees one that is used behind its end.
SANITIZED := $(abspath build/sanitized)
SANITIZE_TESTS ?= tests/property/test_native_*.py tests/integration/test_native_modules.py \
	$(addprefix tests/unit/test_,protocol_*.py session_*.py poller.py value_loader.py undelivered_work.py) \
	$(addprefix tests/unit/test_semantics_,delete.py lease.py next.py set.py) \
	$(addprefix tests/property/test_,bulk_requests.py commit_marks.py decoders.py protocol_round_trips.py \
		poller_simulation.py determinism.py) \
	tests/format/test_protocol_conversation.py tests/integration/test_hostile_clients.py \
	$(addprefix tests/integration/test_,daemon_protocol.py error_codes.py daemon_kill.py)
# Resident memory: the sanitizer keeps what is freed.
SANITIZE_NOT := tests/integration/test_daemon_protocol.py::test_pipeline_of_100000_requests_is_answered_in_order
.PHONY: sanitize
sanitize: $(READY) ## tests of the native leaves under the address and undefined-behaviour sanitizers of gcc
	$(BIN)/python hatch_build.py $(SANITIZED) -O1 -g -Werror -fno-omit-frame-pointer \
		-fsanitize=address,undefined -fno-sanitize-recover=undefined
	export FASTJOURNAL_NATIVE=$(SANITIZED) PYTHONMALLOC=malloc FJ_HOSTILE_SECONDS=60 \
		ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(gcc -print-file-name=libasan.so)"; \
	$(BIN)/python -c 'from fastjournal import _native; assert _native.leaves, _native.reason'; \
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(SANITIZE_TESTS) $(ARGS) \
		--deselect $(SANITIZE_NOT)

COVERED := $(abspath build/covered)
.PHONY: fuzz
fuzz: $(READY) ## look for inputs that break the codec; ARGS=600 for so many seconds; names lines of C that no input reaches
	$(BIN)/python -m tests.property.fuzzing $(ARGS)
	@if ! command -v gcov >/dev/null; then echo "left out: lines of codec.c that no input reaches: needs gcc and gcov"; exit; fi; \
	rm -rf $(COVERED); \
	$(BIN)/python hatch_build.py $(COVERED) -O0 --coverage -dumpdir $(COVERED)/ 2>/dev/null; \
	FASTJOURNAL_NATIVE=$(COVERED) $(BIN)/python -m pytest -q \
		tests/unit/test_protocol_fuzz.py tests/property/test_native_codec.py; \
	cd $(NATIVE); echo "lines of the native codec that neither inputs nor tests reach:"; \
	gcov --stdout --object-directory $(COVERED) codec.c | \
		sed -nE 's/.*0:Source:(.*)/\1/p; /^ *#####/p' | grep -A1000 -E '^(codec.c|frames.h)$$' | sed '/^\//,$$d'

.PHONY: lint
lint: $(VENV)/.ready ## format, ruff, mypy --strict, import contracts: changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.ready ## write the format and the fixes that ruff knows
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: pages
pages: $(VENV)/.ready ## write what is made from declarations and marks of tests: parts of docs/, examples in systemd/
	$(BIN)/python -m tests.docs.protocol_pages
	$(BIN)/python -m tests.docs.decision_pages
	$(BIN)/python -m tests.docs.manual_pages
	$(BIN)/python -m tests.docs.example_files
	$(BIN)/python -m tests.docs.operating_pages

.PHONY: docs
docs: $(VENV)/.ready ## build the documentation site into build/site: links checked, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

.PHONY: bench
bench: $(READY) ## measure speed and memory, native and pure, beside Redis and beanstalkd where installed
	$(BIN)/python -m tests.bench.bench_instructions --both
	for file in $(filter-out %/bench_instructions.py,$(wildcard tests/bench/bench_*.py)); do \
		echo "== $$file"; $(BIN)/python -m "tests.bench.$$(basename "$$file" .py)" $(ARGS); done

.PHONY: bench-peers
bench-peers: $(READY) ## compare with Redis and beanstalkd (25 minutes), and write it into docs/performance.md
	$(BIN)/python -m tests.bench.bench_peers --json $(PEERS) $(ARGS)
	$(BIN)/python -m tests.bench.peers.page $(PEERS)

.PHONY: bench-peers-page
bench-peers-page: $(VENV)/.ready ## write docs/performance.md from the figures of the last make bench-peers
	$(BIN)/python -m tests.bench.peers.page $(PEERS)

.PHONY: soak
soak: $(READY) ## load a daemon for an hour and watch its memory; ARGS="--seconds 60", ARGS="--spool": kills around a spool; ARGS="--failover": of daemons with a remote log
	$(BIN)/python -m tests.soak.soak $(ARGS)

.PHONY: build
build: $(VENV)/.ready ## source distribution and wheel, into dist/
	$(BIN)/python -m build $(ARGS)

.PHONY: dist
dist: build ## the same as build

.PHONY: deb
deb: $(VENV)/.ready ## Debian package with its own Python packages, into build/deb/; SYSTEM_PYTHON=/usr/bin/python3
	packaging/debian/build $(BIN)/python build/deb

.PHONY: test-deb
test-deb: deb ## install, run, remove and purge the Debian package in files that are thrown away; needs root
	packaging/debian/try build/deb/fastjournal_*.deb

CONTAINER_BUILDER ?= $(shell command -v podman || command -v buildah || command -v docker)
CONTAINER_TAG ?= fastjournal:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
CONTAINER_ARGS ?=
# The format in which podman and buildah keep a health check; docker has no other.
CONTAINER_FORMAT := $(if $(filter podman buildah,$(notdir $(firstword $(CONTAINER_BUILDER)))),--format docker)
.PHONY: container
container: ## image fastjournal:VERSION, by podman, buildah or docker
	@if test -z "$(CONTAINER_BUILDER)"; then echo "make: needs podman, buildah or docker" >&2; exit 69; fi
	$(CONTAINER_BUILDER) build --file packaging/Containerfile $(CONTAINER_FORMAT) $(CONTAINER_ARGS) \
		--build-arg COMMIT="$$(git describe --always --dirty --exclude='*' --abbrev=12)" \
		--tag "$(CONTAINER_TAG)" .

.PHONY: test-container
test-container: $(VENV)/.ready ## build the image and run it in files that are thrown away; needs root and podman
	packaging/try-container $(BIN)

# What requires-python and the classifiers promise. DEBIAN=sid takes those that are not there from Debian.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
.PHONY: try-pythons
try-pythons: $(VENV)/.ready ## build and try the wheel with each of PYTHONS; DEBIAN=sid gets missing ones: root and mmdebstrap
	packaging/try-pythons $(BIN) $(PYTHONS)

.PHONY: audit
audit: $(VENV)/.ready ## look for known vulnerabilities of the pinned versions; needs the network
	$(BIN)/python packaging/audit.py $(ARGS)

.PHONY: constraints
constraints: ## take the newest versions of everything and pin them in constraints.txt
	new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT; \
	$(PYTHON) -m venv "$$new"; \
	"$$new/bin/python" -m pip install --quiet --upgrade $(PIP); \
	"$$new/bin/pip" install --quiet --upgrade $(BUILD_TOOLS) --editable '.[all]' --group dev; \
	{ echo '# Every version that the make targets install. Written by: make constraints'; \
	  "$$new/bin/pip" freeze --all --exclude-editable; } >constraints.txt

.PHONY: install-systemd
install-systemd: ## install the units; PREFIX=, BINDIR= and DESTDIR= say where
	./systemd/install

.PHONY: clean
clean: ## remove everything that the other targets created
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache spark-warehouse metastore_db derby.log $(NATIVE)/*.so
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
