"""The tiny GLM-OCR model: its architecture, its training from nothing, and the shipped checkpoint.

It exists so that the whole training path can be tried and tested on a laptop without a model hub. The class, the
processor and the chat template have the shape of the published model; only the sizes differ. Run
``python -m gravity_rl.tiny --help`` to rebuild the checkpoint.
"""
