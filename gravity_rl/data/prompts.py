"""The prompt of each task, read from `text.txt`, `table.txt` and `formula.txt`."""

from pathlib import Path

from gravity_rl.data.contract import TASKS
from gravity_rl.resources import resource_dir


def prompt_file(task: str, prompts_dir: str | Path | None = None) -> Path:
    """Return the file that holds the prompt of `task`; the shipped one if no folder is given."""
    folder = resource_dir("prompts") if prompts_dir is None else Path(prompts_dir)
    return folder / f"{task}.txt"


def load_prompts(prompts_dir: str | Path | None = None) -> dict[str, str]:
    """Return the prompt of each task, without the newline that ends the file.

    Raises:
        ValueError: a file is missing, empty, or not UTF-8.
    """
    prompts = {}
    for task in TASKS:
        path = prompt_file(task, prompts_dir)
        if not path.is_file():
            raise ValueError(f"no prompt for the task {task}: {path} is not a file")
        try:
            prompt = path.read_text(encoding="utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"prompt file {path} is not UTF-8: {error}") from error
        if not prompt.strip():
            raise ValueError(f"prompt file {path} is empty")
        prompts[task] = prompt
    return prompts
