# make run    audit the default job; its report is in runs/digits
# make test   run the tests
# Both make their own virtual environment first and need Python >= 3.11 only.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/digits

.PHONY: run test test-slow lint types docs clean

run: $(VENV)/installed
	$(BIN)/python scripts/train.py --config=configs/digits.py --workdir=$(WORKDIR)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2

# Minutes, not seconds: what `make test` leaves out.
test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

# The figures of the README. EMNIST is a file in TensorFlow Federated's format.
EMNIST ?= data/emnist_all.sqlite
docs: $(VENV)/installed-dev
	$(BIN)/python scripts/train.py --config=configs/digits.py --workdir=runs/digits
	$(BIN)/python scripts/train.py --config=configs/emnist.py \
	  --config.data.path=$(EMNIST) --config.data.only_digits=True \
	  --config.rounds=100 --config.evaluate_every=10 --workdir=runs/emnist
	$(BIN)/python scripts/gaussian.py --seed=0 --out=runs/gaussian.json
	$(BIN)/python scripts/docs.py --digits=runs/digits --emnist=runs/emnist \
	  --gaussian=runs/gaussian.json

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; give another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@ $(VENV)/installed
