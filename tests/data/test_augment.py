from __future__ import annotations

import torch

from gossamer.core import Key
from gossamer.data.augment import CropAndFlip


def batch() -> torch.Tensor:
    x = torch.arange(6 * 3 * 8 * 8, dtype=torch.float32).reshape(6, 3, 8, 8) + 1
    return x.contiguous(memory_format=torch.channels_last)


def test_the_same_key_changes_a_batch_the_same_way() -> None:
    change, x = CropAndFlip(), batch()
    assert torch.equal(change(x, Key(1)), change(x, Key(1)))
    assert not torch.equal(change(x, Key(1)), change(x, Key(2)))


def test_crops_are_shifted_mirrored_and_padded_with_black() -> None:
    x = batch()
    fill = (-1.0, -2.0, -3.0)
    padded = torch.empty(6, 3, 16, 16)
    padded[:] = torch.tensor(fill)[:, None, None]
    padded[:, :, 4:12, 4:12] = x
    out = CropAndFlip(4, fill)(x, Key(3))
    mirrored = 0
    for before, after in zip(padded, out, strict=True):
        windows = {
            (top, left, flip): (window.flip(-1) if flip else window)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            for window in [before[:, top : top + 8, left : left + 8]]
        }
        matches = [place for place, window in windows.items() if torch.equal(window, after)]
        assert len(matches) == 1
        mirrored += matches[0][2]
    assert 0 < mirrored < 6


def test_the_batch_is_left_alone_and_the_result_is_channels_last() -> None:
    x = batch()
    before = x.clone()
    out = CropAndFlip()(x, Key(0))
    assert torch.equal(x, before)
    assert out.shape == x.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
