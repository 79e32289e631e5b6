"""Trained models on devices: sparse models as files, run with NumPy alone.

Nothing in here imports torch. `gossamer.load("model.gsm")(x)` reads a file that `gossamer export`
wrote and predicts with the kernels, or with NumPy where they were not built.
"""

from gossamer.deploy.predictor import Predictor, load
from gossamer.deploy.stored import Unreadable

__all__ = ["Predictor", "Unreadable", "load"]
