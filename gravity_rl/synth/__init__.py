"""Rendered OCR crops with exact references: text, tables and formulas drawn from sampled content.

Content is sampled, drawn with knobs for difficulty, and split so that no training content ever occurs in a held-out
crop. ``python -m gravity_rl.synth --out DIR`` writes a dataset that the trainer reads.
"""
