"""Settings of the rollout engines: what an engine cannot do is refused before a model is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GlmOcrConfig, Qwen2_5_VLConfig

from gravity_rl import rollout as rollout_module
from gravity_rl.config import GravityConfig, RunConfig, parse_block_size
from gravity_rl.decoding import DecodeMemoryError
from gravity_rl.model import ModelError, resolve_checkpoint
from gravity_rl.parsing import ConfigError
from gravity_rl.preflight import check_rollout, default_rollout
from gravity_rl.rollout import DecodingEngine, Prompts, RolloutError, decoding_inputs, generation_seed
from gravity_rl.savings import measure_saving
from gravity_rl.train import check_sharding, main

MakeConfig = Callable[..., RunConfig]


@pytest.mark.parametrize("rollout", ["ar", "self_spec"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetition_penalty": 1.1}, "repetition_penalty: 1.1 does not go with rollout: {}"),
        ({"cache_implementation": "static"}, "cache_implementation: 'static' does not go with rollout: {}"),
        ({"generation_kwargs": '{"no_repeat_ngram_size": 3}'}, "takes suppress_tokens, not no_repeat_ngram_size"),
        ({"temperature": 1e-7}, "temperature: 1e-07 does not go with rollout: {}: the least is 1e-06"),
        ({"torch_compile": True}, "torch_compile: True does not go with rollout: {}"),
        ({"use_vllm": True}, "use_vllm: True is not supported"),
        ({"use_transformers_continuous_batching": True}, "does not take images"),
    ],
)
def test_what_an_engine_would_not_do_is_refused(
    make_config: MakeConfig, rollout: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(rollout=rollout, **settings)
    assert message.format(rollout) in str(caught.value)


def test_what_the_engines_take(make_config: MakeConfig) -> None:
    settings = {"top_p": 0.9, "top_k": 20, "min_p": 0.05, "temperature": 0.7, "rollout_batch_size": 3}
    config = make_config(
        rollout="self_spec", rollout_block_size=4, generation_kwargs='{"suppress_tokens": [5]}', **settings
    )
    assert config.training.rollout_block_size == "4"
    make_config(rollout="transformers", repetition_penalty=1.1, generation_kwargs='{"no_repeat_ngram_size": 3}')


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "fast", "", "²", "9" * 30, "9" * 5000])
def test_a_window_is_auto_or_a_whole_number(make_config: MakeConfig, value: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout_block_size: '.*' must be auto or a whole number of at least 1"):
        make_config(rollout="self_spec", rollout_block_size=value)
    assert parse_block_size("auto") == "auto" and parse_block_size("16") == 16


def test_a_window_fits_into_a_completion(make_config: MakeConfig) -> None:
    make_config(rollout="self_spec", rollout_block_size=24)
    with pytest.raises(ConfigError, match="rollout_block_size: 25 is more than max_completion_length, which is 24"):
        make_config(rollout="self_spec", rollout_block_size=25)


@pytest.mark.parametrize("rollout", ["self_spec", "transformers"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": None}, "temperature must be a number, not null"),
        ({"top_p": None}, "top_p must be a number, not null"),
        ({"max_completion_length": None}, "max_completion_length must be a number, not null"),
        ({"repetition_penalty": None}, "repetition_penalty must be a number, not null"),
        ({"generation_kwargs": [1]}, "generation_kwargs: [1] must be a mapping"),
        *(
            ({"generation_kwargs": {"suppress_tokens": tokens}}, f"suppress_tokens: {tokens!r} must be a list of token")
            for tokens in (4, None, ["a"], [40.5], [True], [-3])
        ),
    ],
)
def test_values_of_the_wrong_kind_are_refused(rollout: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GravityConfig(rollout=rollout, use_cpu=True, bf16=False, report_to="none", num_generations=8, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [None, True, [4], 4.0])
def test_a_window_is_text(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"rollout_block_size: .* must be auto or a whole number"):
        GravityConfig(rollout="self_spec", rollout_block_size=value, use_cpu=True, bf16=False)


@pytest.mark.parametrize("rollout", ["ar", "transformers"])
def test_a_window_needs_drafts(make_config: MakeConfig, rollout: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout_block_size: '4' has no effect: it needs rollout: 'self_spec'"):
        make_config(rollout=rollout, rollout_block_size=4)


def processor(mask_id: int = 9) -> Any:
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<|mask|>": mask_id}, mask_token="<|mask|>")
    return SimpleNamespace(tokenizer=tokenizer)


def shipped(folder: Path, **changes: Any) -> Path:
    """The shipped checkpoint's settings with another ``block_diffusion.json``."""
    source = resolve_checkpoint("shipped:tiny")
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    fields = json.loads((source / "block_diffusion.json").read_text())
    (folder / "block_diffusion.json").write_text(json.dumps(fields | changes))
    return folder


def test_self_speculation_needs_a_drafter(
    make_argv: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ({}, {"dry_run": True}):
        assert main(make_argv(rollout="self_spec", **more)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: rollout: self_spec: ") and "has no block_diffusion.json" in error


def test_a_drafter_that_contradicts_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="mask_id 100000 is no row of the embedding"):
        check_rollout("self_spec", shipped(tmp_path / "a", mask_id=100_000), processor(100_000), None)
    with pytest.raises(ModelError, match="ar_loss_weight is 0: its AR path was not trained"):
        check_rollout("self_spec", shipped(tmp_path / "b", ar_loss_weight=0.0), processor(), None)
    mask_id = json.loads((resolve_checkpoint("shipped:tiny") / "block_diffusion.json").read_text())["mask_id"]
    folder = shipped(tmp_path / "c")
    for rollout in ("self_spec", "ar", "transformers"):
        with pytest.raises(ModelError, match="the files belong to different checkpoints"):
            check_rollout(rollout, folder, processor(mask_id + 1), None)
        drafter = check_rollout(rollout, folder, processor(mask_id), "sdpa")
        assert drafter is not None and drafter.mask_id == mask_id


@pytest.mark.parametrize("rollout", ["ar", "self_spec"])
def test_other_models_and_other_attention_are_refused(tmp_path: Path, rollout: str) -> None:
    Qwen2_5_VLConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"model_type is 'qwen2_5_vl', but rollout: {rollout} needs 'glm_ocr'"):
        check_rollout(rollout, tmp_path, processor(), None)
    assert check_rollout("transformers", tmp_path, processor(), "flash_attention_2") is None
    assert default_rollout(tmp_path) == "transformers"
    with pytest.raises(ConfigError, match=r"'flash_attention_2' does not take the masks .* choose one of sdpa, eager"):
        check_rollout(rollout, shipped(tmp_path / "glm"), processor(), "flash_attention_2")


def test_default_engine_of_a_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert default_rollout(tiny_checkpoint) == "ar"
    assert default_rollout(resolve_checkpoint("shipped:tiny")) == "self_spec"
    assert default_rollout(shipped(tmp_path / "a", ar_loss_weight=0.0)) == "ar"
    Qwen2_5_VLConfig().save_pretrained(shipped(tmp_path / "b"))
    assert default_rollout(tmp_path / "b") == "transformers"


@pytest.mark.parametrize("changes", [{"text_config": 3}, {"model_type": ["a"]}, {"quantization_config": 3}])
def test_a_configuration_of_odd_types_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = shipped(tmp_path / "a") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError, match=r"a/config.json cannot be read"):
        default_rollout(tmp_path / "a")


@pytest.mark.parametrize("rollout", ["ar", "self_spec"])
@pytest.mark.parametrize("way", ["fsdp", "zero3"])
def test_a_sharded_model_is_refused(rollout: str, way: str) -> None:
    def trainer(rollout: str, stage: int) -> Any:
        plugin = SimpleNamespace(zero_stage=stage) if stage else None
        return SimpleNamespace(
            is_fsdp_enabled=not stage,
            args=SimpleNamespace(rollout=rollout, optim="adamw_torch"),
            accelerator=SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)),
        )

    stage = 3 if way == "zero3" else 0
    with pytest.raises(ConfigError, match=rf"rollout: {rollout} .* \(DDP\) or ZeRO-2, or set rollout: transformers"):
        check_sharding(trainer(rollout, stage), None)
    check_sharding(trainer("transformers", stage), None)
    check_sharding(trainer(rollout, 2), None)


def engine(make_config: MakeConfig, **settings: Any) -> DecodingEngine:
    class Policy:
        def __enter__(self) -> Any:
            config = GlmOcrConfig()
            return SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, config=config)

        def __exit__(self, *args: Any) -> None:
            return None

    config = make_config(rollout="ar", **settings)
    return DecodingEngine(
        Policy, config.training, pad_token_id=0, eos_token_ids=[1], banned_token_ids=[2], drafter=None
    )


@pytest.mark.parametrize("rollout", ["ar", "transformers"])
def test_an_end_token_cannot_be_banned(
    make_argv: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], rollout: str
) -> None:
    assert main(make_argv(rollout=rollout, generation_kwargs='{"suppress_tokens": [0, 2]}')) == 2
    assert "generation_kwargs: suppress_tokens has [0], which end a completion" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"logging_steps": 2}, {"steps_per_generation": 1}, {"generation_batch_size": 4}])
def test_forwards_are_not_counted_from_means(make_config: MakeConfig, tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "config.yaml").write_text(make_config(rollout="ar", **settings).to_yaml())
    with pytest.raises(ConfigError, match="forwards of a run can only be counted with logging_steps: 1"):
        measure_saving(tmp_path, tmp_path / "crops.jsonl")


PROMPTS = Prompts([[5, 6], [7]], None, {"mm_token_type_ids": [[0, 0], [0]]})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            DecodeMemoryError("out of memory: lower max_live_rows"),
            "rollout_batch_size: 2 .* set it lower, or rollout_block_size",
        ),
        (FloatingPointError("logits are not finite"), "training has diverged"),
    ],
)
def test_failures_of_decoding_name_the_setting_of_training(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(rollout_module, "generate", fail)
    with pytest.raises(RolloutError, match=message):
        engine(make_config).generate(PROMPTS, seed=0, row_ids=[0, 1])


def test_settings_reach_the_decoder(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {}

    def record(model: Any, inputs: Any, **settings: Any) -> Any:
        taken.update(settings)
        return SimpleNamespace(sequences=[torch.tensor([3, 1])], row_stats=[], stats=None)

    monkeypatch.setattr(rollout_module, "generate", record)
    settings: dict[str, Any] = {
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "temperature": 0.7,
        "rollout_batch_size": 1,
    }
    ours = engine(make_config, **settings)
    assert ours.generate(PROMPTS, seed=4, row_ids=[8, 9]).ids == [[3, 1]]
    expected = settings | {"max_live_rows": 1, "seed": 4, "row_ids": [8, 9], "method": "ar", "max_new_tokens": 24}
    del expected["rollout_batch_size"]
    assert {name: taken[name] for name in expected} == expected
    assert (taken["eos_token_ids"], taken["banned_token_ids"]) == ([1], [2])
    assert taken["cost_model"] is ours.cost_model


def test_prompts_are_padded_on_the_left() -> None:
    inputs = decoding_inputs(PROMPTS, 9, torch.device("cpu"))
    assert inputs["input_ids"].tolist() == [[5, 6], [9, 7]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [0, 1]]
    assert inputs["mm_token_type_ids"].tolist() == [[0, 0], [0, 0]]


def test_seeds_are_a_function_of_seed_step_and_generation() -> None:
    seeds = [generation_seed(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert generation_seed(0, 0, 0) == seeds[0]
