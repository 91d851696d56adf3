"""GRPO training of document-OCR vision-language models on exact OCR rewards.

Entry points: ``accelerate launch gravity_rl/train.py --config …`` trains, ``python -m gravity_rl.evaluate``
measures a checkpoint on held-out crops, ``python -m gravity_rl.synth`` renders crops, ``python -m
gravity_rl.tiny`` rebuilds the tiny model that the demo starts from.
"""

__version__ = "0.1.0"
