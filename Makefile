# Every target sets up its own environment: a virtual environment in .venv with all packages.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
STAMP := .venv/.ready
DEMO := .venv/.demo
DOCS := .venv/.docs
# What an installation is made from; the kernels are compiled again when their sources change.
PACKAGE := pyproject.toml setup.py constraints.txt \
	$(wildcard src/gossamer/arithmetic/native/* src/gossamer/wire/numbers/native/*)

.PHONY: setup demo test test-slow lint format bench results docs clean

setup: $(STAMP)

$(STAMP): $(PACKAGE)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch numpy
	$(INSTALL) --editable ".[dev]"
	@touch $(STAMP) $(DEMO)

# A demo does not wait for the development tools.
$(DEMO): $(PACKAGE)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch numpy
	$(INSTALL) --editable ".[cli,plot,report,data]"
	@touch $(DEMO)

demo: $(DEMO)
	$(BIN)/python -m gossamer demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tables and pictures of the pages, from the files in results/ and benchmarks/results/.
results: $(STAMP)
	$(BIN)/python tools/results.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

$(DOCS): $(STAMP)
	$(INSTALL) --editable ".[docs]"
	@touch $(DOCS)

# The variable silences a notice of the theme about MkDocs 2, which is not used here.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build site
