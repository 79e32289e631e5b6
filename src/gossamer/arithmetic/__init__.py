"""What is behind `Task.gradients`: torch, or the package's own kernels for sparse models.

The kernels compute at the non-zeros only. They run a model as a plan: a list of steps that is
traced once and executed, forward to optimiser, in one call (docs/arithmetic.md).
"""
