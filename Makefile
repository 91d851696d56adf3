# make demo   install into .venv and run the main job on the tiny model
# make joint  a few minutes of joint AR + block-diffusion training on the tiny model, and what its drafts are worth
# make test   lint, type check and every test
# make test-rewards   the reward library alone, installed without torch and numba, in an environment of its own
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_FLAGS ?=
JOINT_OUT ?= runs

.PHONY: demo joint test test-rewards install clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a few minutes and about 2 GB (more with a CUDA build of torch)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,fast,dev]"
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/python -m gravity_rl.demo $(DEMO_FLAGS)

# One thread: two are no faster for a model of this size, and collapse when another program runs.
joint: $(INSTALLED)
	$(BIN)/python -m gravity_rl.synth --out $(JOINT_OUT)/crops --preset tiny --train 2000 --heldout 60
	$(BIN)/accelerate launch gravity_rl/adapt.py --config configs/adapt_tiny_cpu.yaml \
	    --train_data $(JOINT_OUT)/crops/train.jsonl --eval_data $(JOINT_OUT)/crops/heldout.jsonl \
	    --output_dir $(JOINT_OUT)/joint --max_steps 150 --warmup_steps 15 --resume_from_checkpoint latest
	OMP_NUM_THREADS=1 $(BIN)/python -m gravity_rl.joint.evaluate --model_name_or_path $(JOINT_OUT)/joint/final \
	    --eval_data $(JOINT_OUT)/crops/heldout.jsonl --output_dir $(JOINT_OUT)/drafting --max_completion_length 256

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-rewards:
	test -x $(VENV)-rewards/bin/python || $(PYTHON) -m venv $(VENV)-rewards
	$(VENV)-rewards/bin/python -m pip install --quiet --constraint constraints.txt ".[dev]"
	$(VENV)-rewards/bin/python -m pytest tests/library

clean:
	rm -rf $(VENV) $(VENV)-rewards runs build dist
