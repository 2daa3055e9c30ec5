# Everything works on a machine that has Python 3.11 and this folder: each target prepares .venv first.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: setup demo test check clean

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

clean:
	rm -rf .venv build dist *.egg-info
