# Everything runs from .venv, which is made where it is missing, and again when pyproject.toml or constraints.txt change.
# Needs GNU make 3.81 or later and Python 3.11 or later: make PYTHON=/path/to/python3.12 takes a certain one.

PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done)

BIN := .venv/bin
STAMP := .venv/.installed
CODE := headrace workers producers examples
OLD := Headrace needs Python 3.11 or later; install one, or name it: make PYTHON=/path/to/python3.12
NO_VENV := No virtual environment could be made; on Debian and Ubuntu install the package python3-venv

.DEFAULT_GOAL := help
.PHONY: help venv demo check test soak bench docs reference clean

help:  ## this list
	@awk -F ':.*## *' '/^[a-z]+:.*##/ { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(STAMP)  ## the virtual environment, with the command `headrace` in it

demo: $(STAMP)  ## a broker, a Redis and a model on this machine, and a backlog with faults going through them
	$(BIN)/headrace demo

check: $(STAMP)  ## lint, format, types, import contracts, unit tests: under a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit -n 2 --dist loadfile

test: check  ## check, and every other test, against a real broker and a real Redis: three at once, since most of them wait
	$(BIN)/pytest -q tests --ignore=tests/unit -m "not long" -n 3 --dist loadfile --reruns 1 -r R

soak: $(STAMP)  ## faults in random order for SECONDS (300) with three workers, everything audited; SEED repeats a run
	HEADRACE_SOAK_S=$(or $(SECONDS),300) $(if $(SEED),HEADRACE_SOAK_SEED=$(SEED)) $(BIN)/pytest -q -s tests/crash/test_soak.py
	$(BIN)/pytest -q tests/crash -m long

bench: $(STAMP)  ## the measurements
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html" >&2

reference: $(STAMP)  ## the generated pages of docs/ and the dashboard, made again from the code
	$(BIN)/headrace config reference > docs/configuration.md
	$(BIN)/python -m tests.support.acl_table > docs/acls.md
	$(BIN)/python -m tests.support.cli_reference > docs/cli.md
	$(BIN)/python -m headrace.metrics.reference > docs/metrics.md
	$(BIN)/python grafana/dashboard.py > grafana/dashboards/headrace.json

clean:  ## removes .venv and the caches of the tools
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site

$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$(OLD)" >&2; exit 1; fi; \
		echo "Making .venv with $(PYTHON)" >&2; \
		"$(PYTHON)" -m venv --clear .venv || { echo "$(NO_VENV)" >&2; exit 1; }; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,test]'
	@touch $@
