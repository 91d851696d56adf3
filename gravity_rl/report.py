"""A page that shows a run: reward curves, held-out reward before and after, and crops with what the model wrote.

``python -m gravity_rl.report RUN`` writes ``RUN/report.html``, one file without scripts or outside references.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from gravity_rl.config import parse_config
from gravity_rl.data import TASKS, load_ocr_dataset
from gravity_rl.metrics import DECODINGS, format_results
from gravity_rl.recorder import read_metrics, write_atomically

EXAMPLES_PER_TASK = 4
SMOOTHING_STEPS = 5
STAGES = ("before", "after")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td, th { border: 1px solid #ccc; padding: .4rem; vertical-align: top; text-align: left; overflow-wrap: anywhere; }
td.crop { width: 16rem; } td.crop img { max-width: 100%; }
code, pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; }
.better { background: #e8f6e8; } .worse { background: #fbe9e7; }
"""


def write_report(run: Path) -> Path:
    """Writes the page of a finished run and returns its path.

    Raises:
        FileNotFoundError: the run has no metrics or no held-out evaluation.
        ValueError: a file of the run is damaged, or its held-out data are gone.
    """
    results = {name: _read_json(run / "evaluation" / f"{name}.json") for name in STAGES}
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(run.name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Run {html.escape(run.name)}</h1>"
        f"<h2>Held-out reward</h2><pre>{html.escape(format_results(results))}</pre>"
        f"<h2>Reward of the rollouts</h2>{reward_curves(read_metrics(run))}"
        f"<h2>Held-out crops, greedy</h2>{_examples(run)}</body></html>"
    )
    path = run / "report.html"
    write_atomically(path, page)
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(result, dict) or not set(DECODINGS) <= result.keys():
        raise ValueError(f"{path} is no held-out evaluation: it has no {' and '.join(DECODINGS)} rewards")
    return result


def reward_curves(metrics: Sequence[dict[str, Any]]) -> str:
    """Mean reward of each step's rollouts by task, as inline SVG; a running mean is drawn over the points."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="mean reward", ylim=(0, 1))
    names = [name for task in TASKS if any((name := f"rewards/{task}/mean") in row for row in metrics)]
    for name in names:
        points = [(row["step"], row[name]) for row in metrics if name in row]
        steps, values = zip(*points, strict=True)
        smooth = [
            sum(values[max(0, i + 1 - SMOOTHING_STEPS) : i + 1]) / min(i + 1, SMOOTHING_STEPS)
            for i in range(len(values))
        ]
        (line,) = axes.plot(steps, smooth, label=name.removeprefix("rewards/").removesuffix("/mean"))
        axes.plot(steps, values, ".", color=line.get_color(), alpha=0.3)
    if names:
        axes.legend()
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer)
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :]


def _examples(run: Path) -> str:
    """A few held-out crops of each task, those whose reward changed most first."""
    predictions = {
        name: {
            row["row"]: row
            for row in pq.read_table(run / "evaluation" / f"{name}.parquet").to_pylist()
            if row["decoding"] == "greedy"
        }
        for name in STAGES
    }
    before, after = predictions["before"], predictions["after"]
    held_out = load_ocr_dataset(parse_config(["--config", str(run / "config.yaml")]).data, split="eval")
    rows = []
    for task in sorted({prediction["task"] for prediction in before.values()}):
        of_task = [number for number, prediction in before.items() if prediction["task"] == task]
        of_task.sort(key=lambda number: -abs(after[number]["reward"] - before[number]["reward"]))
        rows += [
            _example(held_out[number]["image"], before[number], after[number]) for number in of_task[:EXAMPLES_PER_TASK]
        ]
    heads = "".join(f"<th>{head}</th>" for head in ("crop", "reference", "before", "after"))
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


def _example(image: Image.Image, before: dict[str, Any], after: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    source = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    better = after["reward"] > before["reward"]
    mark = "better" if better else "worse" if after["reward"] < before["reward"] else ""
    return (
        f"<tr><td class='crop'><img alt='crop {html.escape(before['id'])}' src='{source}'></td>"
        f"<td><code>{html.escape(before['reference'])}</code></td>"
        f"<td>{before['reward']:.3f}<br><code>{html.escape(before['completion'])}</code></td>"
        f"<td class='{mark}'>{after['reward']:.3f}<br><code>{html.escape(after['completion'])}</code></td></tr>"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.report", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory with metrics and a held-out evaluation")
    try:
        print(write_report(parser.parse_args(argv).run))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
