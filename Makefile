# make run   creates .venv, installs what is needed, runs the default search:  make run ARGS="seed=1 num_training_steps=50"
# make test  the same for the tests:  make test ARGS="-x tests/graphs"; what they cover, half as slow again:  ARGS="--cov"
# make test-all  the tests and those marked slow: exhaustive versions and full sizes;  only these:  make test ARGS="-m slow"
# make docs  builds the documentation in docs/_build/html and checks its links; warnings are errors
PYTHON ?= python3
VENV := .venv
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/python -m pip --quiet
# Wheels with a hash of hashes.txt and no further dependencies; `pip check` finds a missing one.
HASHED := $(PIP) install --require-hashes --no-deps --only-binary :all:

.PHONY: run test test-all docs install install-test hashes clean

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
$(VENV)/installed: pyproject.toml constraints.txt hashes.txt | $(VENV)/bin/python
	sed '/^# Extras/,$$d; /^#/d; s/$$/ /' constraints.txt > $(VENV)/pins
	grep -F -f $(VENV)/pins hashes.txt > $(VENV)/requirements.txt
	$(install)
	touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt hashes.txt | $(VENV)/bin/python
	cp hashes.txt $(VENV)/requirements.txt
	$(install)
	touch $@ $(VENV)/installed

# Torch is downloaded first: given its hashes, pip would prefer the build of the index to one at hand. What a build for GPUs
# needs in addition comes last, by the versions that torch names and without hashes.
define install
	$(PIP) download --no-deps --only-binary :all: --dest $(VENV)/torch -c constraints.txt torch
	grep '^torch==' hashes.txt > $(VENV)/torch/requirements.txt
	$(HASHED) --no-index --find-links $(VENV)/torch -r $(VENV)/torch/requirements.txt
	rm -r $(VENV)/torch
	$(HASHED) -r $(VENV)/requirements.txt
	$(PIP) install -c constraints.txt torch
	$(PIP) install --no-deps --no-build-isolation -e .
	$(PIP) check
endef

# After a change of constraints.txt. The file has a line per package, with the hashes of all its files in the index.
hashes:
	$(PYTHON) -m venv $(VENV)/hashes
	$(VENV)/hashes/bin/python -m pip install --quiet uv
	$(VENV)/hashes/bin/uv pip compile --quiet --no-deps --no-header --no-annotate --generate-hashes constraints.txt \
		| sed -e ':a' -e '/\\$$/{N; s/ *\\\n */ /; ba' -e '}' \
		-e "s/^torch==[^ ]*/& $$(sed -n 's/^# torch.* //p' constraints.txt | tail -n 1)/" > $(VENV)/hashes.txt
	mv $(VENV)/hashes.txt hashes.txt
	rm -r $(VENV)/hashes

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gflownet needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) dist docs/_build .coverage .pytest_cache .ruff_cache
