# Everything a checkout needs is set up by the first target that needs it, and left alone after that.
# What the machine itself must have is checked and installed by packaging/machine.sh.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# rustup puts cargo here, but only login shells look there.
export PATH := $(PATH):$(HOME)/.cargo/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Variables of an enclosing virtual or conda environment would make maturin install there.
unexport VIRTUAL_ENV CONDA_PREFIX

OWN_TARGET := target
# wolfSSL's configure takes neither a build folder nor a CONFIG_SITE whose path has a space in it.
ifneq ($(word 2,$(CURDIR)),)
OWN_TARGET := $(HOME)/.cache/ciphertoll/$(shell pwd | cksum | cut -d' ' -f1)
export CARGO_TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(OWN_TARGET))
endif
TARGET := $(or $(CARGO_TARGET_DIR),$(OWN_TARGET))
# The copy is as good as the file: see the rule for it.
export CONFIG_SITE := $(abspath $(TARGET))/config.site

# One profile and one set of features everywhere: the C libraries are then built once.
CARGO_FLAGS := --release --workspace --features wolfssl

BIN := .venv/bin
MACHINE := .venv/.machine
CONFIG := $(TARGET)/config.site
ENGINE := .venv/.engine
PACKAGES := .venv/.packages
DEV_PACKAGES := .venv/.dev-packages

RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) \
	Cargo.toml Cargo.lock rust-toolchain.toml .cargo/config.toml packaging/engine/pyproject.toml

.PHONY: help run test test-rust test-python check check-rust check-python check-licences advisories bench setup clean

help: ## Say what there is to make
	@echo 'usage: make TARGET, or make run ARGS="--preset paper"'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s%s\n", $$1, $$2}' Makefile

run: $(PACKAGES) ## Set up, then measure: ciphertoll run $(ARGS)
	@$(BIN)/ciphertoll run $(ARGS)

test: test-rust test-python ## Set up, then run the tests of both languages

test-rust: $(CONFIG) ## Only those in Rust
	cargo test $(CARGO_FLAGS)

test-python: $(DEV_PACKAGES) ## Only those in Python
	$(BIN)/python -m pytest

check: check-rust check-python check-licences ## Set up, then format, lint, type, layer and licence checks

check-rust: $(CONFIG) ## Only rustfmt and clippy, with and without wolfSSL
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --all-targets -- -D warnings
	cargo clippy --release --workspace --all-targets -- -D warnings

check-python: $(DEV_PACKAGES) ## Only ruff, mypy, layers and budgets
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_repository.py

check-licences: $(DEV_PACKAGES) ## Only licences and sources of the crates
	$(BIN)/python -m pytest tests/test_licences.py
	if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; fi

advisories: ## Look for known vulnerabilities (needs cargo-deny; fetches the RustSec database)
	@command -v cargo-deny >/dev/null || { echo 'error: needs `cargo install --locked cargo-deny`' >&2; exit 3; }
	cargo deny check advisories

bench: $(DEV_PACKAGES) ## Set up, then measure ciphertoll itself
	$(BIN)/python bench/run.py $(ARGS)

setup: $(DEV_PACKAGES) ## Set up only, with the tools for development

clean: ## Remove what was built and the virtual environment; results stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis python/*.egg-info '$(OWN_TARGET)'

$(MACHINE): packaging/machine.sh
	@bash packaging/machine.sh
	@touch $@

# wolfssl-sys does not watch CONFIG_SITE, so a changed file has to throw away what was built with the old one.
$(CONFIG): config.site $(MACHINE)
	@mkdir -p '$(TARGET)'
	@cmp -s config.site '$(CONFIG)' || cargo clean --quiet --release --package wolfssl-sys
	@cp config.site '$(CONFIG)'

$(ENGINE): $(RUST_SOURCES) $(CONFIG) $(MACHINE)
	@$(BIN)/python -c 'import maturin' 2>/dev/null || $(BIN)/python -m pip install --quiet 'maturin >= 1.9, < 2'
	@echo 'building ciphertoll-engine (minutes the first time)'
	@cd packaging/engine && VIRTUAL_ENV='$(CURDIR)/.venv' '$(CURDIR)'/$(BIN)/maturin develop --release
	@touch $@

# After the engine: the version that pyproject.toml pins is then there, and is not looked for on the index.
$(PACKAGES): pyproject.toml python/ciphertoll/__init__.py $(ENGINE)
	@echo 'installing Python packages into .venv (about 300 MB the first time)'
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV_PACKAGES): $(PACKAGES)
	@echo 'installing tools for development into .venv'
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
