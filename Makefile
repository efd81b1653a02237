# make run    audit the default job; its report is in runs/digits
# make test   run the tests; test-integration those that start other programs,
#             test-frameworks those of integrations with the real frameworks
# Both make their own virtual environment first and need Python >= 3.11 only.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/digits

.PHONY: run quick lock test test-integration test-frameworks test-slow \
  test-package test-versions frameworks \
  frameworks-installed notebooks lint types site docs results studies reliability \
  mutants bench bench-quick clean

run: $(VENV)/installed
	$(BIN)/epe-jax run digits --workdir=$(WORKDIR)

# The inner loop, within 40 s on two cores: lint, types of what differs from BASE,
# and the laws of the core.
BASE ?= HEAD
CHANGED = $(shell git diff --name-only --diff-filter=d $(BASE) -- 'epe_jax/*.py' \
  'scripts/*.py' 'configs/*.py' 'examples/*.py' ':!epe_jax/auditor/adapters' \
  ':!epe_jax/conformance/adapters' ':!examples/frameworks' ':!examples/findings')
LAWS := tests/test_architecture.py tests/accounting/test_gaussian.py \
  tests/audit/test_attack_statistics.py tests/audit/test_audit_step.py \
  tests/audit/test_record.py tests/canaries/test_bits.py \
  tests/epsilon/test_two_gaussians.py \
  tests/epsilon/test_known_shifts.py \
  tests/epsilon/test_lower_bounds.py tests/sampling \
  tests/training/test_fedavg.py
quick: $(VENV)/installed-dev
	$(BIN)/ruff check -q .
	$(BIN)/ruff format --check -q .
	$(if $(CHANGED),$(BIN)/pyright --pythonpath $(BIN)/python $(CHANGED))
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(LAWS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10

# What `make test` leaves out: other programs, notebooks, whole reproductions.
test-integration: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal \
	  -m 'integration and not slow' tests

# Minutes, not seconds.
test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -m slow

# Of these: the wheel in empty environments; the lowest and the newest versions.
test-package: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -m slow tests/test_install.py -k wheel
test-versions: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q -m slow tests/test_install.py -k versions

# The integrations, each with its framework, in environments of their own.
FRAMEWORKS := .venv-frameworks
INSTALLS := install-torch install-lora install-nvflare
.PHONY: $(INSTALLS)
frameworks-installed: $(INSTALLS)
$(INSTALLS): install-%:
	FRAMEWORKS=$* PYTHON=$(PYTHON) bash tests/auditor/adapters/install.sh $(FRAMEWORKS)

test-frameworks: $(VENV)/installed-dev frameworks-installed
	bash tests/auditor/adapters/run.sh $(FRAMEWORKS)

# docs/notebooks: the notebooks of colabs with what they show; minutes.
NBCONVERT := nbconvert --execute --to markdown --output-dir=docs/notebooks \
  --template-file=colabs/page.md.j2 \
  --NbConvertApp.output_files_dir='{notebook_name}'
notebooks: $(VENV)/installed-dev frameworks-installed
	rm -rf docs/notebooks
	$(BIN)/python -m $(NBCONVERT) $(filter-out %/own_loop.ipynb,$(wildcard colabs/*.ipynb))
	PYTHONPATH=$(CURDIR) $(FRAMEWORKS)/torch/bin/python -m $(NBCONVERT) colabs/own_loop.ipynb

# docs/frameworks: an audit of each framework, with its figure; minutes.
frameworks: $(VENV)/installed-dev frameworks-installed
	bash examples/frameworks/run.sh runs/frameworks $(FRAMEWORKS)
	$(BIN)/python scripts/framework_docs.py --audits=runs/frameworks

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

# The pages of docs and the API as a site, in site/; a warning is an error.
site: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@$(BIN)/python -c 'from tests import test_site; \
	  print(f"{test_site.count_all():,} words of prose")'
	@echo 'To read it, and search it: $(BIN)/python -m http.server --directory site'

# The figures of the README, from files in TensorFlow Federated's format, and the
# report in Chromium. One run has fewer clients in a round because its stand-in data
# have few.
EMNIST ?= data/emnist_all.sqlite
STACKOVERFLOW ?= data/stackoverflow.sqlite
WORD_COUNT ?= data/stackoverflow.word_count
TRAIN := $(BIN)/python scripts/train.py
docs: $(VENV)/installed-dev
	$(TRAIN) --config=configs/digits.py --workdir=runs/digits
	$(TRAIN) --config=configs/emnist.py --config.data.path=$(EMNIST) \
	  --config.data.only_digits=True --config.rounds=40 \
	  --config.evaluate_every=10 --workdir=runs/emnist
	$(TRAIN) --config=configs/emnist.py --config.data.path=$(EMNIST) \
	  --config.clients_per_round=50 --config.rounds=100 \
	  --config.evaluate_every=10 --workdir=runs/emnist62
	$(TRAIN) --config=configs/stackoverflow.py:medium \
	  --config.data.path=$(STACKOVERFLOW) --config.data.word_count=$(WORD_COUNT) \
	  --workdir=runs/stackoverflow
	$(BIN)/python scripts/gaussian.py --seed=0 --out=runs/gaussian.json
	-$(BIN)/epe-jax check epe_jax.conformance.example:NoNoiseOnBiases \
	  --shapes=20x30,30 > docs/runs/check.txt
	$(BIN)/python scripts/docs.py --gaussian=runs/gaussian.json \
	  --run=digits=runs/digits --run=emnist=runs/emnist \
	  --run=emnist62=runs/emnist62 \
	  --run=stackoverflow=runs/stackoverflow
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,1150 \
	  --screenshot=$(CURDIR)/docs/screenshots/report_wide.png \
	  file://$(CURDIR)/runs/digits/report.html

# docs/results.md and docs/results: the papers' tables and figures; a day on two cores.
results: $(VENV)/installed-dev
	while read -r words; do \
	  $(BIN)/python scripts/reproduce.py $$words </dev/null || exit 1; \
	done < papers/recorded.txt
	$(BIN)/python scripts/docs.py --results=runs/paper/small \
	  --results=runs/paper/medium --results=runs/paper/paper

# How often bounds fail, and how estimators compare; an hour on 2 cores.
studies: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.bounds.coverage --out=docs/data
	$(BIN)/python -m benchmarks.bounds.leaderboard --out=docs/data
	$(BIN)/python -m benchmarks.pages

# docs/promises.md: kills, full disks, long runs; hours.
reliability: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.reliability --out=docs/data
	$(BIN)/python -m benchmarks.pages

# Which single changes of a room of the core no test of it notices; days. It changes the
# files of the checkout one at a time, so give it a clone. It can be interrupted, and goes
# on after `git checkout epe_jax`.
ROOM ?= accounting
MUTANTS := runs/mutants/$(ROOM)
mutants: export PATH := $(CURDIR)/$(BIN):$(PATH)
mutants: $(VENV)/installed-dev
	mkdir -p runs/mutants
	sed 's/ROOM/$(ROOM)/g' benchmarks/cosmic_ray.toml > $(MUTANTS).toml
	cosmic-ray baseline $(MUTANTS).toml
	test -f $(MUTANTS).sqlite || { cosmic-ray init $(MUTANTS).toml $(MUTANTS).sqlite && \
	  cr-filter-operators $(MUTANTS).sqlite $(MUTANTS).toml; }
	cosmic-ray exec $(MUTANTS).toml $(MUTANTS).sqlite
	cr-html $(MUTANTS).sqlite > $(MUTANTS).html
	cr-rate $(MUTANTS).sqlite

# Every benchmark in turn, on a machine that does nothing else, then
# docs/benchmarks.md; hours. bench-quick sees whether they run, and writes no page.
BENCHMARKS := canary_kernels canary_law audited_round exact_noise secure_round \
  secure_aggregation correlated_noise algorithm1 sharded_audit rounds \
  auditor_overhead waiting compile_for
QUICK := canary_kernels canary_law audited_round algorithm1 \
  sharded_audit rounds waiting
bench: $(VENV)/installed-dev frameworks-installed
	for name in $(BENCHMARKS); do python=$(BIN)/python; \
	  [ $$name = auditor_overhead ] && python=$(FRAMEWORKS)/torch/bin/python; \
	  $$python -m benchmarks.speed.$$name || exit 1; done
	$(BIN)/python -m benchmarks.pages

bench-quick: $(VENV)/installed-dev
	for name in $(QUICK); do $(BIN)/python -m benchmarks.speed.$$name --quick \
	  --out=runs/benchmarks/$$name.json || exit 1; done

# The versions that tests run with, of every Python >= 3.11.
lock: $(VENV)/python
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q pyproject.toml --extra dev --universal --upgrade \
	  --python-version 3.11 --no-header --no-annotate -o requirements-dev.lock

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; give another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml setup.py
	$(BIN)/python -m pip install -q -e '.[all]'
	touch $@

$(VENV)/installed-dev: $(VENV)/python pyproject.toml setup.py requirements-dev.lock
	$(BIN)/python -m pip install -q -e '.[dev]' -c requirements-dev.lock
	touch $@ $(VENV)/installed
