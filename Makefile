# Everything works on a machine that has Python 3.11 and this folder: each target prepares .venv first.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
DOCS_STAMP := .venv/.docs-ready

.PHONY: setup demo test check docs docs-serve clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# torch alone first: a constraint on it must not be solved together with packages that would pull another build
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation \
		--editable ".[atari,envpool,grpc,ray,replay,video,dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[docs]"
	@touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

clean:
	rm -rf .venv build dist site *.egg-info
