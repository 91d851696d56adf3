"""Rebuilds the shipped tiny checkpoint from nothing: ``python -m gravity_rl.tiny --out runs/tiny``.

Writes ``OUT/reader`` (exact labels), ``OUT/start`` (then trained on the noisy teacher: the shipped checkpoint) and
``OUT/curve.jsonl``. Takes at most an hour on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from gravity_rl.tiny.build import build_tiny
from gravity_rl.tiny.train import TrainPlan, train_stages


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m gravity_rl.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--reader", type=Path, help="skip the first two stages and start from this reader")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; crops are drawn by another process")
    for field in fields(TrainPlan):
        if isinstance(field.default, int | float):
            name = "--" + field.name.replace("_", "-")
            parser.add_argument(name, type=type(field.default), default=field.default, help=f"default {field.default}")
    args = parser.parse_args(argv)
    plan = replace(TrainPlan(), **{f.name: getattr(args, f.name) for f in fields(TrainPlan) if hasattr(args, f.name)})
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    curve = args.out / "curve.jsonl"
    model, processor = build_tiny(seed=plan.seed)
    if args.reader:
        model = AutoModelForImageTextToText.from_pretrained(args.reader)
    else:
        curve.unlink(missing_ok=True)
        train_stages(model, processor, plan, ["easy", "full"], curve)
        model.save_pretrained(args.out / "reader")
        processor.save_pretrained(args.out / "reader")
    train_stages(model, processor, plan, ["noisy"], curve)
    model.save_pretrained(args.out / "start")
    processor.save_pretrained(args.out / "start")


if __name__ == "__main__":
    main()
