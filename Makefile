# make run   creates .venv, installs what is needed, runs the default search:  make run ARGS="seed=1 num_training_steps=50"
# make test  the same for the tests:  make test ARGS="-x tests/graphs"; what they cover, half as slow again:  ARGS="--cov"
# make test-all  the tests and those marked slow: exhaustive versions and full sizes;  only these:  make test ARGS="-m slow"
# make docs  builds the documentation in docs/_build/html and checks its links; warnings are errors
PYTHON ?= python3
VENV := .venv
# Older versions of pip read the first for what builds the package too, newer ones the second.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(VENV)/bin/python -m pip install --quiet

.PHONY: run test test-all docs install install-test clean

run: install
	$(VENV)/bin/python -m gflownet.train $(ARGS)

# One thread per process: two processes with two threads each take more than twice the time on two cores.
test test-all: export OMP_NUM_THREADS ?= 1
# Compiled files are kept, also where the environment turns them off: many tests start processes.
test test-all docs: export PYTHONDONTWRITEBYTECODE :=

test: install-test
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

test-all: install-test
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m "" $(ARGS)

docs: install-test
	$(VENV)/bin/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html $(ARGS)
	cd docs && ../$(VENV)/bin/python -m sphinx_site.check _build/html

install: $(VENV)/installed
install-test: $(VENV)/installed-test

# The stamps are older than what they were made from exactly when something has to be installed again.
$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e .
	touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[test]"
	touch $@ $(VENV)/installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gflownet needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) dist docs/_build .coverage .pytest_cache .ruff_cache .hypothesis
