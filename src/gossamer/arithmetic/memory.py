"""Where the values of a plan are in memory.

An image is stored as [channel][row][pixel][example]. Rows have zero columns at both sides, as many
as the convolutions that read them are padded by. Activations are kept for the backward pass;
gradients share memory as soon as nobody reads them any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.arithmetic.chain import Chain, Step
from gossamer.arithmetic.library import Library
from gossamer.arithmetic.structs import NONE, CStep, CValue, Kind


@dataclass(frozen=True)
class Places:
    """The memory of a plan: its values, and all floats that an example takes."""

    values: list[CValue]
    floats: int


def places(chain: Chain, gradients: bool = True) -> Places:
    """The places of all values; activations first, then gradients, if there are any."""
    makers = {step.output: step for step in chain.steps}
    values, end = [], 0
    for index, (channels, height, width) in enumerate(chain.shapes):
        halo = max((_halo(step) for step in chain.consumers(index)), default=0)
        side = _gradient_halo(chain, makers[index]) if index in makers else 0
        values.append(CValue(channels, height, width, end, halo, NONE, side))
        # Values that were fused away have no maker and take no memory.
        if index in makers or index == chain.input:
            end += channels * height * (width + 2 * halo)
    if not gradients:
        return Places(values, end)
    room = _Gradients(end)
    wanted = _wanted(chain)
    room.place(values, chain.output)
    for step in reversed(chain.steps):
        for value in step.reads:
            if value in wanted and values[value].grad_offset == NONE:
                room.place(values, value)
        room.release(values[step.output])
    return Places(values, room.end)


def compiled(library: Library, chain: Chain, index: dict[str, int], gradients: bool = True) -> int:
    """A handle of the plan that runs a chain; `index` numbers the parameters."""
    where = places(chain, gradients)
    steps = c_steps(chain, index)
    handle: int = library.plan(
        (CStep * len(steps))(*steps),
        len(steps),
        (CValue * len(where.values))(*where.values),
        len(where.values),
        chain.input,
        chain.output,
        where.floats,
    )
    return handle


def _halo(step: Step) -> int:
    return step.window.pad_x if step.kind is Kind.CONVOLUTION else 0


def _gradient_halo(chain: Chain, step: Step) -> int:
    """Zero columns beside the output's gradient that the input's gradient looks at."""
    if step.kind is not Kind.CONVOLUTION:
        return 0
    window = step.window
    width, out_width = chain.shapes[step.input][2], chain.shapes[step.output][2]
    most = 0
    for first in range(min(window.stride_x, width)):
        last = (width - first + window.stride_x - 1) // window.stride_x - 1
        for column in range(
            (first + window.pad_x) % window.stride_x, window.width, window.stride_x
        ):
            shift = (first + window.pad_x - column) // window.stride_x
            most = max(most, -shift, last + shift - (out_width - 1))
    return most


def _wanted(chain: Chain) -> set[int]:
    """The values whose gradients somebody needs: those that depend on a parameter."""
    wanted: set[int] = set()
    for step in chain.steps:
        if step.weight or step.bias or wanted.intersection(step.reads):
            wanted.add(step.output)
    return wanted


@dataclass
class _Gradients:
    """Gives gradients the first gap that is large enough."""

    begin: int
    taken: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    def __post_init__(self) -> None:
        self.end = self.begin

    def place(self, values: list[CValue], index: int) -> None:
        value = values[index]
        size = value.channels * value.height * (value.width + 2 * value.grad_halo)
        at = self.begin
        for first, last in sorted(self.taken):
            if at + size <= first:
                break
            at = max(at, last)
        self.taken.append((at, at + size))
        self.end = max(self.end, at + size)
        value.grad_offset = at

    def release(self, value: CValue) -> None:
        self.taken = [span for span in self.taken if span[0] != value.grad_offset]


def c_steps(chain: Chain, index: dict[str, int]) -> list[CStep]:
    """The steps as the kernels read them; `index` numbers the parameters."""

    def number(name: str | None) -> int:
        return NONE if name is None else index[name]

    steps = []
    for step in chain.steps:
        window = step.window
        steps.append(
            CStep(
                kind=step.kind,
                relu=step.relu,
                input=step.input,
                other=NONE if step.other is None else step.other,
                output=step.output,
                weight=number(step.weight),
                bias=number(step.bias),
                mean=number(step.mean),
                variance=number(step.variance),
                kernel_height=window.height,
                kernel_width=window.width,
                stride_y=window.stride_y,
                stride_x=window.stride_x,
                pad_y=window.pad_y,
                pad_x=window.pad_x,
                groups=step.groups,
                whole_channels=step.whole_channels,
                tiled=chain.tiled(step),
                epsilon=step.epsilon,
                momentum=step.momentum,
                rate=step.rate,
            )
        )
    # Backwards, the first consumer of a value writes its gradient and the others add to it.
    written: set[int] = set()
    for each in reversed(steps):
        each.adds = each.input in written
        written.add(each.input)
        if each.other != NONE:
            each.other_adds = each.other in written
            written.add(each.other)
    return steps
