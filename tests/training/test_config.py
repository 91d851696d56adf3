"""The published settings, value by value, and every way in which a setting could be lost without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from gravity_rl.config import RunConfig, parse_config
from gravity_rl.data.config import DataConfig
from gravity_rl.evaluate import EvaluateConfig
from gravity_rl.joint.drafter import require_drafter
from gravity_rl.model import resolve_checkpoint
from gravity_rl.parsing import ConfigError, StrictParser
from gravity_rl.preflight import check_optimizer
from gravity_rl.resources import resource_dir
from gravity_rl.run_config import ModelArguments
from rewards import RewardConfig
from rewards.types import ROBUST

CONFIGS = resource_dir("configs")
RUNS = sorted(path for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("adapt_"))
PUBLISHED: dict[str, Any] = {
    "num_generations": 28,
    "generation_batch_size": 24 * 28,
    "loss_type": "dapo",
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "beta": 1e-3,
    "learning_rate": 3e-6,
    "lr_scheduler_type": "cosine",
    "optim": "adamw_8bit",
    "bf16": True,
    "max_grad_norm": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "max_completion_length": 8448,
    "mask_truncated_completions": True,
    "scale_rewards": "group",
    "max_steps": 500,
}
SIZE_ONLY = {
    "model_name_or_path", "bf16", "use_cpu", "train_data", "eval_data", "num_generations",
    "generation_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps",
    "gradient_checkpointing", "max_steps",
    "max_completion_length", "optim", "learning_rate", "output_dir", "save_steps", "reward_workers", "rollout",
}  # fmt: skip


BASE = "model_name_or_path: shipped:tiny\nuse_cpu: true\nbf16: false\nnum_generations: 8\n"


def load(path: Path, *overrides: str) -> RunConfig:
    return parse_config(["--config", str(path), "--use_cpu", *overrides])


def write(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "run.yaml"
    file.write_text(BASE + text, encoding="utf-8")
    return ["--config", str(file)]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_training_yaml_loads(path: Path) -> None:
    config = load(path)
    assert config.data.train_data
    assert config.training.generation_batch_size % config.training.num_generations == 0


def test_there_are_yamls_for_every_size() -> None:
    assert {path.stem for path in RUNS} == {"gravity_16xh100", "one_gpu", "tiny_cpu"}


def test_published_values() -> None:
    config = load(CONFIGS / "gravity_16xh100.yaml")
    assert {name: config.training.as_given[name] for name in PUBLISHED} == PUBLISHED
    assert config.data.weights == {"table": 0.92, "text": 0.06, "formula": 0.02}
    assert config.rewards == RewardConfig()


def test_published_batch_fills_16_processes_with_one_generation_a_step() -> None:
    values = yaml.safe_load((CONFIGS / "gravity_16xh100.yaml").read_text(encoding="utf-8"))
    per_pass = values["per_device_train_batch_size"] * 16
    assert per_pass * values["gradient_accumulation_steps"] == values["generation_batch_size"]


def test_published_values_are_the_defaults() -> None:
    config = parse_config(["--model_name_or_path", "x", "--use_cpu", "--generation_batch_size", "672"])
    assert {name: config.training.as_given[name] for name in PUBLISHED if name != "bf16"} == {
        name: value for name, value in PUBLISHED.items() if name != "bf16"
    }
    assert config.training.bf16


def test_rollout_engines_of_the_configurations_take_their_models() -> None:
    engines = {path.stem: load(path).training.rollout for path in RUNS}
    assert engines == {"gravity_16xh100": "ar", "one_gpu": "ar", "tiny_cpu": "self_spec"}
    assert parse_config(["--model_name_or_path", "x", "--use_cpu", "--num_generations", "4"]).training.rollout == (
        "transformers"
    )
    require_drafter(resolve_checkpoint(load(CONFIGS / "tiny_cpu.yaml").model.model_name_or_path))


@pytest.mark.parametrize("name", ["tiny_cpu", "one_gpu"])
def test_smaller_configurations_differ_in_size_only_and_say_so(name: str) -> None:
    published = yaml.safe_load((CONFIGS / "gravity_16xh100.yaml").read_text(encoding="utf-8"))
    lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    values = yaml.safe_load("\n".join(lines))
    differing = {key for key in {*published, *values} if published.get(key) != values.get(key)}
    assert differing <= SIZE_ONLY | {"rollout_batch_size"}
    missing = set(published) - set(values)
    assert not missing
    for key in differing:
        line = next(line for line in lines if line.startswith(f"{key}:"))
        assert "#" in line, f"{line!r} differs from the published run and does not say how"
    unchanged = [line for line in lines if line.split(":")[0] in set(values) - differing]
    assert not [line for line in unchanged if "->" in line]


@pytest.mark.parametrize("path", sorted((CONFIGS / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_yamls_load(path: Path) -> None:
    processes = {"one_gpu": 1, "ddp_8gpu": 8, "ddp_2x8gpu": 16}
    assert load_config_from_file(str(path)).num_processes == processes[path.stem]


@pytest.mark.parametrize("path", sorted((CONFIGS / "evaluate").glob("*.yaml")), ids=lambda path: path.stem)
def test_evaluation_yamls_load(path: Path) -> None:
    parser = StrictParser([EvaluateConfig, ModelArguments, DataConfig, RewardConfig], description="")
    assert parser.parse(["--config", str(path)])[2].eval_data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate: 1e-4", "unknown setting 'lerning_rate'; did you mean 'learning_rate'?"),
        ("beta: 0.1\nbeta: 0.2", "key 'beta' is set twice, on lines 5 and 6"),
        ("env: {A: b}", "`env:` block is not accepted"),
        ("max_steps: 1.5", "--max-steps: invalid int value: '1.5'"),
        ("max_steps: true", "--max-steps: invalid int value: 'True'"),
        ("max_steps: [1]", "max_steps: expected int, got [1]"),
        ("learning_rate: fast", "--learning-rate: invalid float value: 'fast'"),
        ("train_data: crops.jsonl", "train_data must be a list"),
        ("optim: adamw_9bit", "adamw_9bit"),
        ("rollout: vllm", "rollout: 'vllm' is unknown; choose one of transformers, ar, self_spec"),
        ("use_vllm: true", "expands image tokens twice"),
        ("trust_remote_code: true", "code from a checkpoint is never executed"),
        ("eval_strategy: steps", "set eval_data"),
        ("vllm_mode: server", "completions are generated by `rollout: transformers`"),
        ("vespo_k_pos: 1.0", "has no effect: it needs loss_type: 'vespo', which is 'dapo'"),
        ("row_penalty: 2.0", "row_penalty must be between 0.0 and 1.0: 2.0"),
        ("dtype: int8", "dtype: 'int8' is unknown"),
        ("rollout_batch_size: 0", "rollout_batch_size: 0 must be at least 1"),
        ("max_steps: 0", "max_steps: 0 must be at least 1, or -1 to train for num_train_epochs"),
        ("learning_rate: nan", "learning_rate: nan must be a finite number"),
        ("temperature: 0", "temperature: 0.0 must be a positive number"),
        ("epsilon_high: 0.1", "epsilon_high: 0.1 must be at least epsilon, which is 0.2"),
        ("reward_workers: null", "reward_workers must be a number, not null"),
        ("reward_workers: 1\nreward_timeout: null", "reward_timeout must be a number, not null"),
        ("top_p: 1.5", "top_p: 1.5 must be"),
        ("beta: -1", "beta: -1.0 must be"),
        ("save_steps: 0", "save_steps: 0.0 must be a positive number"),
        ("save_total_limit: 0", "save_total_limit: 0 must be at least 1"),
        ("seed: -1", "seed: -1 must be between 0 and 2**32 - 1"),
        ("reward_weights: [1.0, 2.0]", "reward_weights: 2 weights for 1 reward_functions"),
        ("reward_weights: [nan]", "reward_weights: [nan] must be finite numbers"),
        ("loss_type: ppo", "loss_type: 'ppo' is unknown; choose one of grpo, bnpo"),
        ("scale_rewards: max", "scale_rewards: 'max' is unknown; choose one of group, batch"),
        ("? [a]\n: b", "is not valid YAML: while constructing a mapping"),
        ("seed: 2024-99-99", "is not valid YAML: month must be in 1..12"),
        ("seed: !!bool maybe", "is not valid YAML"),
        ("seed: " + "[" * 5000, "run.yaml is not valid YAML: it is nested too deeply"),
        ("reward_functions: [ocr, ocr]", "names a function twice"),
        ("reward_workers: -1", "reward_workers: -1 must be a finite number that is not negative"),
        ("reward_workers: 1.5", "--reward-workers: invalid int value: '1.5'"),
        ("reward_workers: 2\nreward_timeout: 0", "reward_timeout: 0.0 must be a positive number"),
        ("reward_workers: 2\nreward_timeout: .inf", "reward_timeout: inf must be a positive number"),
        ("reward_timeout: 5", "reward_timeout: 5.0 has no effect: it needs reward_workers of at least 1"),
        ("reward_workers: 2\nreward_functions: ['a:b']", "reward_workers: 2 has no effect: it needs `ocr` among"),
        ("profile: robost", "profile must be published or robust: 'robost'"),
        ("table_weight: 0.5", "give all three task weights or none"),
        ("- a\n- b", "is not valid YAML"),
    ],
)
def test_wrong_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(write(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--lerning_rate", "1"],
            "unknown command-line option --lerning_rate; did you mean 'learning_rate'?",
        ),
        (
            ["--learning-rat", "1"],
            "unknown command-line option --learning_rat; did you mean 'learning_rate'?",
        ),
        (["--max_step", "3"], "unknown command-line option --max_step; did you mean 'max_steps'?"),
        (["stray"], "unexpected command-line argument 'stray'"),
        (["--max_steps", "many"], "invalid int value: 'many'"),
        (["--config", "a", "--config", "b"], "--config is given 2 times"),
        (["--config", "does/not/exist.yaml"], "cannot read the configuration file does/not/exist.yaml"),
        (["--use_cpu", "--num_generations", "8"], "model_name_or_path is not set"),
        (["--use_cpu", "--num_generations", "3"], "What would work, each on its own"),
    ],
)
def test_wrong_command_line_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(arguments)
    assert message in str(caught.value)


def test_command_line_overrides_yaml_and_bare_flags_work(tmp_path: Path) -> None:
    argv = write(tmp_path, "learning_rate: 1e-4\nmax_steps: 7")
    config = parse_config([*argv, "--max_steps=9", "--dry_run", "--resume_from_checkpoint"])
    assert config.training.learning_rate == 1e-4
    assert config.training.max_steps == 9
    assert config.training.dry_run
    assert config.training.resume_from_checkpoint == "latest"


def test_a_number_in_a_text_setting_is_read_as_text(tmp_path: Path) -> None:
    config = parse_config(write(tmp_path, "revision: 1234567"))
    assert config.model.revision == "1234567"


def test_help_lists_settings_with_their_description(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_config(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "--shuffle_rewards" in text and "--table_weight" in text and "--row_penalty" in text
    assert "--use_vllm" not in text


def test_resolved_configuration_reads_back_equal(tmp_path: Path, make_config: Callable[..., RunConfig]) -> None:
    config = make_config(table_weight=0.5, text_weight=0.25, formula_weight=0.25, generation_batch_size=16)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    again = parse_config(["--config", str(file)])
    assert again.as_dict() == config.as_dict()
    assert again.training.steps_per_generation == config.training.steps_per_generation == 4


def test_resolved_configuration_holds_no_secret_and_no_launch_option(
    make_config: Callable[..., RunConfig],
) -> None:
    text = make_config(hub_token="hf_secret", dry_run=True).to_yaml()
    assert "hf_secret" not in text
    assert "dry_run" not in text


@pytest.mark.parametrize("rollout", ["transformers", "ar", "self_spec"])
def test_rollout_settings_that_change_no_completion_may_change(
    make_config: Callable[..., RunConfig], rollout: str
) -> None:
    course = make_config(rollout=rollout, rollout_batch_size=8).course()
    assert (make_config(rollout=rollout, rollout_batch_size=2).course() == course) == (rollout != "transformers")
    if rollout == "self_spec":
        assert make_config(rollout=rollout, rollout_batch_size=8, rollout_block_size="4").course() == course


def test_course_ignores_where_and_how_often_a_run_writes(make_config: Callable[..., RunConfig]) -> None:
    course = make_config().course()
    assert make_config(output_dir="elsewhere", save_steps=1, logging_steps=2).course() == course
    assert make_config(learning_rate=1e-5).course() != course
    assert make_config(row_penalty=0.3).course() != course


def test_profile_of_the_rewards_is_read_and_recorded(tmp_path: Path) -> None:
    """Constants that the profiles do not share follow the profile, in the file and on the command line."""
    for text, options in (("profile: robust", []), ("", ["--profile", "robust"])):
        config = parse_config([*write(tmp_path, text), *options])
        assert config.rewards == ROBUST
        file = tmp_path / "resolved.yaml"
        file.write_text(config.to_yaml(), encoding="utf-8")
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["profile"] == "robust"
        assert parse_config(["--config", str(file)]).rewards == ROBUST
    assert parse_config(write(tmp_path, "")).course() != config.course()
    parser = StrictParser([EvaluateConfig, ModelArguments, DataConfig, RewardConfig], description="")
    assert parser.parse(["--model_name_or_path", "x", "--eval_data", "y", "--profile", "robust"])[3] == ROBUST


def test_number_of_reward_workers_may_change_with_a_resumption(make_config: Callable[..., RunConfig]) -> None:
    assert make_config(reward_workers=2, reward_timeout=5.0).course() == make_config().course()


def test_8bit_optimiser_runs_or_says_what_to_set(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(optim="adamw_8bit").training
    pytest.importorskip("bitsandbytes")
    check_optimizer(config)
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"needs bitsandbytes, which does not run here.*set `optim: adamw_torch`"):
        check_optimizer(config)


def test_broken_bitsandbytes_says_what_to_set(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ModuleType("bitsandbytes")
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", broken)
    with pytest.raises(ConfigError, match=r"AttributeError.*set `optim: adamw_torch`"):
        check_optimizer(make_config(optim="adamw_8bit").training)


def test_other_optimisers_need_no_bitsandbytes(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    check_optimizer(make_config(optim="adamw_torch").training)
