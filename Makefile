# Two commands do everything: `make run` and `make test`. Each sets up what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup run test lint format typecheck check bench reproduce-all reproduce-paper archive publish golden clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## the virtual environment, from constraints.txt

# What is imported is compiled then, once: most of what is installed never is, and compiling it all takes longer than the rest of this.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Said before there is a $(VENV), which would keep the old one.
TOO_OLD = '$(PYTHON) is Python %d.%d; dpfl needs 3.11 or later: make PYTHON=python3.11' % sys.version_info[:2]
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and $(TOO_OLD))"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "torch==2.13.0"
	$(INSTALL) -e ".[dev]"
	@$(BIN)/dpfl data fetch --quiet efficientnet_lite0 || echo "no ImageNet weights: tests and features that need them do without"
	@touch $(READY)

run: setup  ## the main job: DP-FedEXP and DP-FedAvg at epsilon 8, with a trusted server and with none, and a plot
	$(BIN)/dpfl run -m algorithm=fedexp,fedavg dp=cdp,ldp dp.epsilon=8 "seed=range(3)"

test: setup  ## all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: setup  ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## ruff: format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

typecheck: setup  ## mypy
	$(BIN)/mypy dpfl_cli
	$(BIN)/mypy --strict --follow-imports=silent tests/typed.py

check: lint typecheck test  ## everything that CI runs

bench: setup  ## speed, as ratios measured side by side in one run
	$(BIN)/python -m tests.benchmarks.run

reproduce-all: setup  ## every table and figure there is, at scale=quick, and their index
	$(BIN)/dpfl reproduce all scale=quick

# Units of at most 90 minutes, one after another, the shortest artifacts first; stopped (Ctrl-C, kill) and started again it goes on where it was.
# Then all their runs as archives, which `dpfl runs import` takes.
reproduce-paper: setup  ## the same at the papers' sizes, in a day to a day and a half: each published as it is finished, and its runs as archives
	while $(BIN)/dpfl reproduce all scale=paper --at-most 90 --publish; status=$$?; [ $$status = 130 ]; do :; done; \
	$(MAKE) archive && exit $$status

# One file for each, made once: delete it to have it made anew.
ARCHIVED = $(shell grep -ls '"seed"' outputs/published/*/*/paper/manifest.json)
archive: setup  ## the runs of what is published at the papers' sizes, into outputs/archive, which is committed
	$(MAKE) $(ARCHIVED:outputs/published/%/paper/manifest.json=outputs/archive/%.tar.xz)

outputs/archive/%.tar.xz: | outputs/published/%/paper/manifest.json
	$(BIN)/dpfl runs export $| --archive $@

publish: setup  ## the same, copied to outputs/published, which is committed
	$(BIN)/dpfl reproduce all scale=quick --publish

golden: setup  ## write the golden runs anew (after a revision was raised)
	$(BIN)/python -m tests.golden

clean:  ## remove the environment and caches; outputs are kept
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
