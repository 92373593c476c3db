# Everything that a person or a machine runs here; `make` lists it. Nothing needs root.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
RELEASES ?= bookworm trixie forky
MARKS ?= slurm and not (clients or one_release or nightly)
# So many test files run at a time; those on YARN one by one, because one keeps two processors busy.
WORKERS ?= 2
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile
# Two rounds at a time: one computes while the other waits for its clusters. Each prints when it has ended, and all run whatever one of them finds.
TWO_AT_A_TIME := $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target
# A test on a real cluster that fails is run once more, and both are printed (docs/decisions/packaging.md).
ON_CLUSTERS := --reruns 1
# Where these tests are, and the long ones: to import the other 8,000 for a few takes half a minute each time.
CLUSTER_TESTS := tests/clients tests/packaging tests/slurm tests/unit/reports/pages tests/yarn
LONG_TESTS := tests/unit/capture tests/unit/test_ways_out.py
BIN := .venv/bin
export UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
export GPUSAGE_CACHE ?= $(CURDIR)/.cache/gpusage
export PATH := $(PATH):$(HOME)/.local/bin
# Where it is set, each of the thousands of Pythons that tests start compiles what it imports: 1.2 s of a core, not 0.4, for `gpusage predict`.
unexport PYTHONDONTWRITEBYTECODE
# uv uses the system's certificate authorities, as pip does: its own fail behind a proxy that opens TLS. The variable has an older and a newer name.
export UV_NATIVE_TLS ?= 1
export UV_SYSTEM_CERTS ?= 1

# The system Python that the deb and rpm are for: Debian 12 and Enterprise Linux 9 have 3.11 (make packages PACKAGE_PYTHON=3.13 is for Debian 13).
PACKAGE_PYTHON ?= $(shell /usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

.PHONY: help demo demo-yarn extras test test-all test-versions test-nightly round-quick round-short round-slurm round-yarn round-long lint format bench numbers wheel man packages docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: .venv/base  ## the main job on a real Slurm of this machine's own, without root (2 minutes)
	$(BIN)/python examples/demo.py

demo-yarn: .venv/base  ## the same on a real YARN of this machine's own, with Java 17 and Maven (3 minutes)
	$(BIN)/python examples/demo_yarn.py

EXTRAS ?= torch,train
extras: .venv/base  ## more of gpusage into .venv: make extras EXTRAS=torch,train (PyTorch takes 5 GB)
	$(call install,.[$(EXTRAS)])

test: .venv/test  ## what a change needs: unit, contract, property and golden tests, a short round on a real Slurm and YARN (6 minutes)
	$(TWO_AT_A_TIME) round-quick round-short

test-all: test packages  ## the same, and then the other tests: on the host's Slurm, a real YARN, and what is released (15 minutes more)
	$(TWO_AT_A_TIME) round-slurm round-yarn round-long

round-quick: .venv/test
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not (slurm or yarn or release or browser or nightly or long)"

round-short: .venv/test
	$(BIN)/pytest $(ON_CLUSTERS) -m "short and (slurm or yarn)" $(CLUSTER_TESTS)

round-long: .venv/test
	$(BIN)/pytest $(SIDE_BY_SIDE) -m long $(LONG_TESTS)

round-slurm: .venv/test
	$(BIN)/pytest $(ON_CLUSTERS) $(SIDE_BY_SIDE) -m "slurm and not (short or nightly)" $(CLUSTER_TESTS)

round-yarn: .venv/test
	$(BIN)/pytest $(ON_CLUSTERS) -m "(yarn or release or browser) and not (short or nightly)" $(CLUSTER_TESTS)

test-versions: .venv/test  ## the Slurm tests on Slurm 22.05, 24.11 and 26.05 (4 minutes each); MARKS="slurm and short" for a short round
	for release in $(RELEASES); do $(MAKE) --no-print-directory on-$$release || exit 1; done

on-%: .venv/test
	$(BIN)/pytest $(ON_CLUSTERS) $(SIDE_BY_SIDE) -m "$(MARKS)" --slurm-release $* $(CLUSTER_TESTS)

short-on-%: .venv/test
	$(BIN)/pytest $(ON_CLUSTERS) $(SIDE_BY_SIDE) -m "slurm and short and not clients" --slurm-release $* $(CLUSTER_TESTS)

test-nightly: test-all  ## everything: also the long rounds, other programs as clients, and every Slurm release (some hours)
	$(BIN)/pytest $(SIDE_BY_SIDE) --hypothesis-profile=search tests/properties
	$(call install,.[exact])
	$(BIN)/pytest $(ON_CLUSTERS) -m nightly
	$(MAKE) test-versions MARKS="slurm and not (clients or one_release)"

lint: .venv/test  ## ruff and mypy --strict
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/mypy bench examples release

format: .venv/test  ## let ruff format everything
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: .venv/test  ## measure what is claimed to be fast
	for script in $(filter-out bench/remake.py,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

DATA ?= ../shared/data
PAGES ?= README.md $(wildcard docs/*.md lab/docs/*.md)
numbers: .venv/test  ## after a refit: remake the numbers in README and docs: make numbers DATA=FOLDER PAGES=docs/shares.md
	$(BIN)/python bench/share_plot.py --write
	$(BIN)/python bench/remake.py --data $(DATA) $(PAGES)

# Released files carry the time of their commit (without git, the start of 2026), so that two builds give the same bytes.
wheel man packages docs: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)

wheel: .venv/release  ## dist/gpusage-*.whl with the YARN jar in it, and gpusage_desk-*.whl; the same bytes each time with one JDK
	rm -rf dist/*.whl plugins/yarn/java/target
	GPUSAGE_YARN_JAR=$$($(BIN)/gpusage yarn jar) $(BIN)/python -m hatchling build --target wheel --directory dist
	cd release/desk && ../../$(BIN)/python -m hatchling build --target wheel --directory ../../dist
	$(BIN)/twine check --strict dist/*.whl

man: .venv/release  ## manual pages of every command, in build/man
	rm -rf build/man && mkdir -p build/man
	$(BIN)/python release/man_pages.py build/man

packages: wheel man  ## dist/gpusage_*.deb and dist/gpusage-*.rpm, which need no network where they are installed
	rm -f dist/*.deb dist/*.rpm
	release/packages.sh $(PACKAGE_PYTHON)

docs: .venv/release  ## the pages of docs/ and the API as a web site, in build/site; a dead link fails
	$(BIN)/properdocs build --strict --config-file release/properdocs.yml

clean:  ## remove what the targets made; downloads in .cache stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

.venv/base: pyproject.toml
	$(call install,.[slurm$(comma)yarn])
	@touch $@

.venv/release: pyproject.toml
	$(call install,.[docs$(comma)release$(comma)slurm$(comma)yarn])
	@touch $@

.venv/test: pyproject.toml
	$(call install,.[test$(comma)torch])
	@touch $@

comma := ,
define install
@command -v uv >/dev/null || echo "make: uv is installed for this user, with pip" >&2
@command -v uv >/dev/null || $(PYTHON) -m pip install --quiet --user uv 2>/dev/null \
  || $(PYTHON) -m pip install --quiet --user --break-system-packages uv 2>/dev/null \
  || { echo "make: uv is needed to set up .venv, and pip could not install it; install the package python3-pip, or uv" >&2; exit 1; }
uv venv --quiet --allow-existing --python $(PYTHON) .venv
uv pip install --quiet --python $(BIN)/python --editable '$(1)' \
  || { echo "make: uv could not; pip tries, as it is set up here" >&2; $(PYTHON) -m pip --python $(BIN)/python install --quiet --editable '$(1)'; }
endef
