# Needs make, git, and a Python of 3.11 to 3.13. `make` alone says what there is.
#
#   make setup PYTHON=/path/to/python3.12    choose the Python
#   make setup TORCH=cpu                     torch without CUDA (Linux: 0.2 GB, not 3)

VENV  := .venv
RUN   := $(VENV)/bin/python
STAMP := $(VENV)/.nanoserve
# PyTorch's own public index of builds without CUDA
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# A person sees pip's progress; a log does without.
QUIET := $(if $(CI),-q)

# Every path is relative, so that a checkout in "My Documents" works too. The stamp
# holds the place it was made for: after a move the editable install points nowhere.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
STALE := stale
endif

# Asked for once, kept until .venv is removed. Coming from CUDA the environment is
# made anew: its libraries, several GB, would otherwise stay behind.
CPU_MARK := $(VENV)/.torch-cpu
TORCH ?= $(if $(wildcard $(CPU_MARK)),cpu)
ifeq ($(TORCH)$(wildcard $(CPU_MARK)),cpu)
STALE := stale
ANEW := true
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lab test lint notebooks check-notebooks site clean stale

help:
	@echo "make setup            build $(VENV) with everything (the others do it by themselves)"
	@echo "make lab              open the course in JupyterLab, on your own copies in my/"
	@echo "make test             lint, types, every test, notebooks included"
	@echo "make lint             ruff and mypy only"
	@echo "make notebooks        run all notebooks and store their outputs"
	@echo "make check-notebooks  run them and compare with the stored outputs"
	@echo "make site             the lessons as pages that need no kernel and no network"
	@echo "make clean            remove caches and reports; keeps $(VENV) and my/"
	@echo
	@echo "PYTHON=python3.12 chooses the Python, TORCH=cpu a torch without CUDA."

setup: $(STAMP)
	@echo "$(VENV) is ready: try  $(VENV)/bin/nanoserve doctor"

# Runs $$1 and answers yes when it is a Python that can make the environment.
# A `python3.12` on the PATH may be a shim that starts nothing: so try it.
define FIND_PYTHON
fits() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }; \
wanted="$(PYTHON)"; python=""; \
if [ -n "$$wanted" ]; then \
  fits "$$wanted" || { echo "make: PYTHON=$$wanted is no Python of 3.11 to 3.13" >&2; exit 1; }; \
  python="$$wanted"; \
else \
  for each in python3 python3.13 python3.12 python3.11 python; do \
    if fits "$$each"; then python="$$each"; break; fi; \
  done; \
fi; \
[ -n "$$python" ] || { echo "make: found no Python of 3.11 to 3.13; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }; \
"$$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || { echo "make: $$python cannot make environments; on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; };
endef

# The stamp goes first and comes last: an install that broke off is done again.
# An environment whose Python has gone, or is another than asked for, is made anew.
$(STAMP): pyproject.toml constraints.txt $(STALE)
	@rm -f $(STAMP)
	@$(FIND_PYTHON) \
	version='import sys; print(sys.version_info[:2])'; \
	if [ "$$($(RUN) -c "$$version" 2>/dev/null)" != "$$("$$python" -c "$$version")" ] \
	  || ! $(RUN) -m pip --version >/dev/null 2>&1 || $(or $(ANEW),false); then \
	  echo "making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "installing into $(VENV): some minutes the first time"
ifeq ($(TORCH),cpu)
	$(RUN) -m pip install $(QUIET) --no-deps --index-url $(TORCH_CPU_INDEX) -c constraints.txt torch
	@touch $(CPU_MARK)
endif
	$(RUN) -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[all]'
	@pwd -P > $(STAMP)

lab: $(STAMP)
	@$(RUN) -m nanoserve.course.lab $(LAB)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# nbval makes a test of every notebook cell. In this environment's own Python, whatever
# "python3" means to Jupyter.
NBVAL := --nbval --nbval-current-env
# A file to each core, so that a notebook and a browser stay in one piece. Threads of
# torch that wait must not spin: the other core's tests need the time. What takes
# longest comes first.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(RUN) -m pytest -q --dist loadfile --no-loadscope-reorder
# Untraced: under coverage the endless attempts of exercises never end, and what a
# notebook or a browser runs is in another process. These wait as much as they work:
# one more at a time than there are cores.
UNTRACED := tests/browser tests/test_exercises.py $(wildcard tests/test_lesson_*.py)

test: lint
	@status=0; set -x; \
	cores=$$($(RUN) -c "import os; print(min(4, os.cpu_count() or 1))"); \
	$(PYTEST) -n $$((cores + 1)) $(NBVAL) $(UNTRACED) notebooks || status=1; \
	OMP_NUM_THREADS=1 $(PYTEST) -n $$cores --cov --cov-report=term $(UNTRACED:%=--ignore=%) tests \
	  || status=1; \
	{ set +x; } 2>/dev/null; exit $$status

notebooks: $(STAMP)
	$(RUN) -m nanoserve.course.notebooks refresh

site: $(STAMP)
	$(RUN) -m nanoserve.course.site

check-notebooks: $(STAMP)
	$(RUN) -m pytest $(NBVAL) notebooks

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov dist build
	find . -name $(VENV) -prune -o -name my -prune -o \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +
