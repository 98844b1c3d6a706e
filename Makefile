# Two commands do everything: `make demo` and `make test`. Both prepare .venv first and say what they install.
PYTHON ?= python3
# Arguments of the demo or the benchmark: make demo ARGS="--quick --out somewhere"
ARGS ?=
JOBS ?= $(shell nproc)
# CUDA=1 builds the CUDA kernels for the demo and the benchmark where no GPU is; CUDA=0 leaves them out where one is.
CUDA ?=

VENV := .venv
BIN := $(VENV)/bin
BUILD := build/release
INSTALLED := $(VENV)/.sparseloom-installed
BENCHMARKS := $(VENV)/.sparseloom-bench-installed
DOCS := $(VENV)/.sparseloom-docs
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# setup.sh leaves it to the first import to compile a module. Where the environment keeps Python from writing that down, as some
# container images do, every process that imports torch would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

# CHECK=1, as .ci/run sets it: where no GPU is found, the CUDA kernels are compiled for less (cmake/cuda.cmake), since nobody can run them.
CHECK ?=

# The CUDA kernels are most of a build's time. The demo and the benchmark need them where a GPU could run them; the tests and
# the wheel have them wherever nvcc is. The stamp says what the installed build is: one with CUDA kernels serves every goal,
# and is never rebuilt without them; one that only checks them serves where no GPU is.
NVCC := $(shell command -v nvcc)
GPU := $(shell nvidia-smi -L 2>/dev/null)
RUNS := demo bench
RUNS_NEED := $(if $(filter 0,$(CUDA)),cpu,$(if $(filter 1,$(CUDA)),cuda,$(if $(NVCC),$(if $(GPU),cuda,cpu),cpu)))
NEEDED := $(if $(filter-out $(RUNS),$(MAKECMDGOALS)),$(if $(NVCC),cuda,cpu),$(RUNS_NEED))
FOUND := $(shell cat $(INSTALLED) 2>/dev/null)
CUDA_FLAVOUR := $(if $(GPU),cuda,$(if $(filter 1,$(CHECK)),check,cuda))
CPU_FLAVOUR := $(if $(GPU),cpu,$(or $(filter check,$(FOUND)),cpu))
FLAVOUR := $(or $(filter cuda,$(FOUND)),$(if $(filter cuda,$(NEEDED)),$(CUDA_FLAVOUR),$(CPU_FLAVOUR)))
cuda_says = with CUDA kernels (about ten minutes of two cores)
check_says = with CUDA kernels for a check (about seven minutes of two cores)
cpu_says = for CPUs alone$(if $(NVCC), (no GPU was found; CUDA=1 builds its kernels all the same))

# Everything the wheel is made of: a change in any of these builds it again.
SOURCES := CMakeLists.txt pyproject.toml README.md LICENSE $(wildcard cmake/*) \
  $(shell find include src bindings -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def') \
  $(shell find python/sparseloom -name '*.so' -prune -o -name __pycache__ -prune -o -type f -print)

# Compiler warnings stop CI, not a newcomer with a newer compiler.
WERROR := $(if $(CI),ON,OFF)

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: FORCE help demo test build wheel bench lint format wheels release-dry-run docs docs-serve docs-tables clean setup-demo setup-test cpp-tests sanitizers aarch64-tests python-tests budget

help:
	@echo 'make demo         train a block-sparse transformer beside its dense twin; ARGS="--help" lists the options;'
	@echo '                  CUDA=1 builds the CUDA kernels even where no GPU is found'
	@echo 'make test         every check: lint, C++ tests, ASan/UBSan, AArch64 under an emulator, Python tests'
	@echo 'make build        build the wheel and install it into .venv'
	@echo 'make wheel        build dist/*.whl'
	@echo 'make wheels       build wheels for glibc 2.28 in dist/cpu and dist/cuda: ARGS=cpu builds one alone'
	@echo 'make bench        run the benchmark: ARGS="--help" lists the options'
	@echo 'make lint         include arrows, clang-format, ruff, mypy'
	@echo 'make format       apply clang-format and ruff'
	@echo 'make docs         build the site in build/site/html, strictly; make docs-serve shows it'
	@echo 'make docs-tables  regenerate the tables and the picture in README.md and docs/'
	@echo 'make clean        remove build/ and dist/; .venv stays'

demo: setup-demo $(INSTALLED) $(BENCHMARKS)
	$(BIN)/python -m sparseloom demo $(ARGS)

bench: setup-demo $(INSTALLED) $(BENCHMARKS)
	$(BIN)/python -m sparseloom bench $(ARGS)

# Tests leave nothing in the home folder, and measure on this build.
test cpp-tests sanitizers aarch64-tests python-tests: export SPARSELOOM_CACHE := $(CURDIR)/build/cache
test python-tests: export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/build/inductor
# The objects of the installed build: test_hf_kernel.py links kernels of them.
test python-tests: export SPARSELOOM_BUILD := $(CURDIR)/$(BUILD)

test: setup-test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory cpp-tests
	@$(MAKE) --no-print-directory sanitizers
	@$(MAKE) --no-print-directory aarch64-tests
	@$(MAKE) --no-print-directory python-tests
	@$(MAKE) --no-print-directory budget

setup-demo:
	@PYTHON=$(PYTHON) tools/setup.sh demo
setup-test:
	@PYTHON=$(PYTHON) tools/setup.sh test

build: setup-demo $(INSTALLED)
wheel: setup-demo $(INSTALLED)

wheels: setup-demo
	PYTHON=$(BIN)/python tools/make_wheels.sh $(ARGS)

# What .github/workflows/release.yml does, without what only a release can: attest and publish.
release-dry-run:
	tools/release_dry_run.sh

# -v: the compiler's progress and CMake's warnings reach the terminal.
$(INSTALLED): $(SOURCES) $(VENV)/.sparseloom-setup $(if $(filter-out $(FLAVOUR),$(FOUND)),FORCE)
	@echo "== building the wheel in $(BUILD) with $(JOBS) jobs, $($(FLAVOUR)_says)"
	@rm -rf dist && mkdir -p dist
	$(BIN)/python -m pip wheel -v --no-build-isolation --no-deps --wheel-dir dist \
	  --config-settings=build-dir=$(BUILD) --config-settings=cmake.define.SPARSELOOM_WERROR=$(WERROR) \
	  --config-settings=cmake.define.SPARSELOOM_CPU_SECONDS=ON \
	  --config-settings=cmake.define.SPARSELOOM_CUDA_CHECK=$(if $(filter check,$(FLAVOUR)),ON,OFF) \
	  --config-settings=cmake.define.SPARSELOOM_CUDA=$(if $(filter cuda check,$(FLAVOUR)),ON,OFF) .
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	@echo $(FLAVOUR) >$@
FORCE:

# Python alone, from where it lies: a change in it needs no new build.
$(BENCHMARKS): benchmarks/pyproject.toml include/sparseloom/version.h $(VENV)/.sparseloom-setup
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable benchmarks
	@touch $@

# In the directory that the wheel was built in, so that the library is compiled once; ctest includes the consumer project.
cpp-tests: $(INSTALLED)
	@echo "== C++ tests"
	cmake -S . -B $(BUILD) -DSPARSELOOM_TESTS=ON -DSPARSELOOM_BENCH=ON
	cmake --build $(BUILD)
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

sanitizers:
	@echo "== C++ tests under ASan and UBSan"
	cmake --preset dev -DSPARSELOOM_WERROR=$(WERROR)
	cmake --build --preset dev
	ctest --preset dev -j $(JOBS)

# tools/setup.sh installs both programs on x86_64; elsewhere there is nothing to cross to.
aarch64-tests:
	@echo "== C++ tests for AArch64, under qemu-user"
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then \
	  cmake --preset aarch64 -DSPARSELOOM_WERROR=$(WERROR) && cmake --build --preset aarch64 && ctest --preset aarch64 -j $(JOBS); \
	else \
	  echo "SKIPPED: needs aarch64-linux-gnu-g++ and qemu-aarch64 (apt-get install g++-aarch64-linux-gnu qemu-user)"; \
	fi

# Each of the processes has a thread for every core: one that waits for the others must sleep, or it takes the core from those that
# it waits for.
python-tests: export OMP_WAIT_POLICY := passive
python-tests: $(INSTALLED) $(BENCHMARKS)
	@echo "== Python tests, against the installed wheel"
	@$(BIN)/python tools/assert_cuda_build.py
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

budget:
	@$(BIN)/python tools/compile_budget.py $(BUILD)

CPP_FILES = $(shell find include src bindings bench/cpp tests/cpp examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
lint: setup-test
	@echo "== lint"
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_subjects.py
	$(BIN)/python tools/check_english.py
	@echo "clang-format, ruff and, beside them, mypy"
	@$(BIN)/mypy & mypy=$$!; \
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES) && $(BIN)/ruff format --check . && $(BIN)/ruff check .; others=$$?; \
	wait $$mypy && exit $$others

format: setup-test
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Sphinx 9 needs Python 3.11.
docs: setup-demo $(DOCS)
	@echo "== the site"
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  $(BIN)/python tools/make_site.py && $(BIN)/python tools/check_site.py; \
	else \
	  echo "SKIPPED: the site needs Python 3.11"; \
	fi

docs-serve: docs
	$(BIN)/python tools/make_site.py --serve $(ARGS)

$(DOCS): tools/docsite/requirements.txt constraints.txt $(VENV)/.sparseloom-setup
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  $(BIN)/python -m pip install --quiet --no-compile --requirement tools/docsite/requirements.txt; \
	fi
	@touch $@

docs-tables: build $(BENCHMARKS)
	$(BIN)/python tools/make_support_table.py
	$(BIN)/python tools/make_api.py
	$(BIN)/python tools/make_break_even.py
	$(BIN)/python tools/make_results.py
	$(BIN)/python tools/make_sweep.py
	$(BIN)/python tools/make_patterns.py
	$(BIN)/python tools/make_campaigns.py

$(VENV)/.sparseloom-setup:
	@PYTHON=$(PYTHON) tools/setup.sh demo

clean:
	rm -rf build dist
