# Everything a person needs to run. Each target makes what it needs, once, in .venv.

# The first of these that is Python 3.11 or newer; or your own: make PYTHON=python3.12 demo
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c $(NEW_ENOUGH) 2>/dev/null && echo $$python && break; done)
NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11))'

VENV := .venv
BIN := $(VENV)/bin
GENERATOR := $(VENV)/generator
# Stamps: what is installed, and as new as the files that say what to install.
SERVE := $(VENV)/.installed-serve
DEV := $(VENV)/.installed-dev
PROTOC := $(GENERATOR)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow attack check check-proto format proto bench clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

demo: $(SERVE)  ## See it work: the main job of the project, in a minute or two
	@$(BIN)/python examples/demo.py

test: $(DEV)  ## Run the tests, on all cores
	@$(BIN)/pytest --numprocesses auto --dist loadfile

test-slow: $(DEV)  ## Run the slow tests
	@$(BIN)/pytest -m slow

attack: $(DEV)  ## Attack what takes bytes from strangers, for hours: calls and files
	@$(BIN)/pytest -s tests/attack --attack-calls 1000000 --attack-files 100000

check: $(DEV) check-proto  ## Check format, lint, types and generated code
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check --quiet
	@$(BIN)/pyright

format: $(DEV)  ## Format the sources, and mend what the linter can
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

# $(call generate,DIRECTORY) writes the generated code there.
generate = $(GENERATOR)/bin/python -m grpc_tools.protoc --proto_path=proto \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) bigproto/v1/policy.proto

proto: $(PROTOC)  ## Regenerate the code of the wire contract
	@$(call generate,proto)

# The generator's environment also holds the oldest grpcio and protobuf that clients may have, so
# the generated code is imported there; the tests import it under the newest.
check-proto: $(PROTOC)
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && $(call generate,"$$new") && \
	for file in $$(cd "$$new" && find . -type f); do \
		diff -u "proto/$$file" "$$new/$$file" || { \
			echo "proto/$${file#./} is not what policy.proto generates: run \`make proto\`." >&2; \
			exit 1; }; \
	done
	@PYTHONPATH=proto $(GENERATOR)/bin/python -W error -c 'import bigproto.v1.policy_pb2_grpc'

bench: $(DEV)  ## Measure: run every benchmark
	@for file in $(sort $(wildcard benchmarks/*.py)); do \
		echo "$$file" && $(BIN)/python "$$file" || exit 1; done

clean:  ## Remove caches and build products; .venv stays
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# $(call create,DIRECTORY) makes a virtual environment, even where Python came without ensurepip.
define create
	@test "$(PYTHON)" && $(PYTHON) -c $(NEW_ENOUGH) 2>/dev/null || { \
		echo "BIG needs Python 3.11 or newer, got '$(PYTHON)'." \
			"Install one, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(1) >/dev/null || { $(PYTHON) -m venv --clear --without-pip $(1) && \
		$(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

$(BIN)/pip:
	$(call create,$(VENV))

$(GENERATOR)/bin/pip:
	$(call create,$(GENERATOR))

$(SERVE): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing big-imitation[serve] in $(VENV); this is done once."
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[serve]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing big-imitation[dev] in $(VENV); this is done once."
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[dev]'
	@touch $(SERVE) $@

$(PROTOC): proto/generator.txt | $(GENERATOR)/bin/pip
	@echo "Installing the code generator in $(GENERATOR); this is done once."
	@$(GENERATOR)/bin/python -m pip install -qq --requirement proto/generator.txt
	@touch $@
