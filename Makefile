# Two commands do everything on a fresh machine: `make tune` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
export HF_HUB_OFFLINE := 1

.PHONY: tune test bench messages docs clean

tune: .venv/installed  ## tune the pretrained EfficientNet-Lite0 on photographs, and a transformer
	$(BIN)/npulift tune examples/efficientnet_lite0.py:model --target openvino --out npulift-out/efficientnet_lite0 --html npulift-out/efficientnet_lite0.html --json npulift-out/efficientnet_lite0.json --budget 3m
	$(BIN)/npulift tune examples/vit_tiny.py:model --target openvino --out npulift-out/vit_tiny --html npulift-out/vit_tiny.html --json npulift-out/vit_tiny.json --budget 2m

test: .venv/installed-all  ## every test that CI runs
	$(BIN)/python tools/messages.py compile
	$(BIN)/ruff check .
	$(BIN)/mypy src/npulift
	$(BIN)/python -m pytest --durations=15

bench: .venv/installed-all  ## side by side with what one would pick instead; takes long, and wants a quiet machine
	$(BIN)/python -m benchmarks

docs: .venv/installed-all  ## the pages that are made from the sources
	$(BIN)/python tools/rewrites_page.py
	$(BIN)/python tools/rules_page.py
	$(BIN)/python tools/errors_page.py

messages: .venv/installed-all
	$(BIN)/python tools/messages.py update

.venv/bin/pip:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip

.venv/torch: .venv/bin/pip constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0  # first and alone, or pip resolves to a CUDA build
	@touch $@

.venv/installed: .venv/torch pyproject.toml setup.py
	$(BIN)/pip install --quiet -c constraints.txt -e '.[examples]'
	@touch $@

.venv/installed-all: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[examples,qnn,ethos-u,ascend,dev]'
	@touch $@

clean:
	rm -rf .venv npulift-out build dist *.egg-info src/*.egg-info
