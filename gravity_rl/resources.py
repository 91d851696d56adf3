"""Where the shipped prompts and configurations live.

In a checkout `prompts/` and `configs/` are top-level folders beside the package; a wheel carries them inside
the package. Everything that reads a shipped file asks `resource_dir`, so both layouts behave the same.
"""

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: Literal["prompts", "configs"]) -> Path:
    """Return the folder of the shipped `prompts` or `configs`.

    Raises:
        ValueError: `name` is neither of the two.
        FileNotFoundError: the installation lacks the folder.
    """
    if name not in ("prompts", "configs"):
        raise ValueError(f"no such resource: {name!r} (choose 'prompts' or 'configs')")
    candidates = (_PACKAGE / name, _PACKAGE.parent / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name} folder not found; looked at {' and '.join(map(str, candidates))}")
