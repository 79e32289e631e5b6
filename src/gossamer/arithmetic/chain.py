"""What a model computes, as steps that the kernels know; read without torch, also on devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.arithmetic.structs import Kind


@dataclass(frozen=True)
class Window:
    """Size, stride and padding of a kernel."""

    height: int
    width: int
    stride_y: int = 1
    stride_x: int = 1
    pad_y: int = 0
    pad_x: int = 0


@dataclass
class Step:
    """One operation: which values it reads and writes, and its parameters by name."""

    kind: Kind
    input: int
    output: int
    other: int | None = None
    relu: bool = False
    weight: str | None = None
    bias: str | None = None
    mean: str | None = None
    variance: str | None = None
    window: Window = Window(1, 1)
    groups: int = 1
    epsilon: float = 0.0
    momentum: float = 0.0
    rate: float = 0.0
    whole_channels: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads."""
        return (self.input,) if self.other is None else (self.input, self.other)

    @property
    def layer(self) -> bool:
        """Whether it is a convolution or a linear layer."""
        return self.kind in (Kind.CONVOLUTION, Kind.LINEAR)


TILED_CHANNELS = 16
"""Inputs and outputs from which a convolution's products outweigh the transforms of its tiles."""

Shape = tuple[int, int, int]
"""Channels, height and width; a vector is an image of one pixel."""


@dataclass
class Chain:
    """The steps of a model in order, and the shapes of the values they pass on."""

    input: int
    output: int
    shapes: list[Shape]
    steps: list[Step] = field(default_factory=list)

    def tiled(self, step: Step) -> bool:
        """Whether a convolution with all its weights is computed tile by tile (Winograd)."""
        window = step.window
        size = (window.height, window.width, window.stride_y, window.stride_x)
        channels = self.shapes[step.input][0], self.shapes[step.output][0]
        plain = step.kind is Kind.CONVOLUTION and size == (3, 3, 1, 1)
        return plain and min(channels) >= TILED_CHANNELS

    def consumers(self, value: int) -> list[Step]:
        """The steps that read a value."""
        return [step for step in self.steps if value in step.reads]
