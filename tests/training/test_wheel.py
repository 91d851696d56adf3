"""The built wheel works outside the checkout: rewards, trainer, prompts, configurations, tiny checkpoint."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBE = """
import sys
from pathlib import Path
import gravity_rl, rewards
from gravity_rl.config import parse_config
from gravity_rl.data.prompts import load_prompts
from gravity_rl.model import resolve_checkpoint
from gravity_rl.resources import resource_dir

home = Path(sys.argv[1]).resolve()
places = [Path(gravity_rl.__file__), Path(rewards.__file__), resource_dir("configs"), resource_dir("prompts"),
          Path(resolve_checkpoint("shipped:tiny", None))]
for place in places:
    assert place.resolve().is_relative_to(home), place
assert load_prompts(None)["table"] == "Table Recognition:"
assert rewards.score("text", "a", "a").value == 1.0
config = parse_config(["--config", str(resource_dir("configs") / "tiny_cpu.yaml")])
assert config.training.num_generations == 14
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_everything_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"gravity_rl", "rewards", "gravity_rl-0.1.0.dist-info"}
    for needed in (
        "gravity_rl/prompts/formula.txt",
        "gravity_rl/configs/gravity_16xh100.yaml",
        "gravity_rl/configs/accelerate/ddp_2x8gpu.yaml",
        "gravity_rl/tiny/checkpoint/model.safetensors",
        "rewards/adapters/trl.py",
    ):
        assert needed in names


def test_the_installed_wheel_works_elsewhere(wheel, tmp_path):
    home = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # -P keeps the current folder off the path; the target comes before any editable install.
    probe = f"import sys; sys.path.insert(0, {str(home)!r})\n{PROBE}"
    finished = subprocess.run(
        [sys.executable, "-P", "-c", probe, str(home)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
