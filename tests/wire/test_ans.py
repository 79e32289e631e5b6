"""Masks survive the range coder, below what Rice needs, and nothing else survives it."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from hypothesis import given, settings
from mask_cases import (
    FUZZ,
    LENET,
    Masks,
    damaged,
    independent,
    mask_lists,
    same,
    trained,
)

from gossamer.wire import WireError
from gossamer.wire.masks import ans, rice
from gossamer.wire.masks.ans import decode, encode
from gossamer.wire.masks.entropy import mask_bits

needs_package = pytest.mark.skipif(
    "constriction" not in {found.name for found in importlib.metadata.distributions()},
    reason="constriction is not installed",
)


@needs_package
@settings(max_examples=60)
@given(mask_lists())
def test_masks_come_back_and_never_cost_more_than_their_bitmap(masks: Masks) -> None:
    for columns in (False, True):
        data = encode(masks, columns=columns)
        assert same(decode(data, [mask.shape for mask in masks]), masks)
        assert len(data) <= 1 + (sum(mask.size for mask in masks) + 7) // 8


@needs_package
@pytest.mark.parametrize("density", [0.5, 0.2, 0.1, 0.05, 0.01, 0.9])
def test_independent_masks_cost_at_most_half_a_percent_over_the_limit(density: float) -> None:
    masks = independent(LENET, density)
    data = encode(masks)
    assert 8 * len(data) < 1.005 * mask_bits(masks)
    assert same(decode(data, LENET), masks)


@needs_package
def test_classes_of_rows_then_columns_make_a_trained_mask_smaller() -> None:
    masks = trained()
    by_rows, by_both = encode(masks, columns=False), encode(masks)
    assert len(by_both) < 0.92 * len(by_rows) < 0.92 * len(rice.encode(masks))
    assert same(decode(by_rows, LENET), masks)
    assert same(decode(by_both, LENET), masks)


@needs_package
def test_the_format_has_not_changed() -> None:
    mask = np.zeros((16, 64), np.bool_)
    mask[3, ::9] = True
    mask[7:9, 5:60:2] = True
    masks = [mask, np.ones(9, np.bool_), np.zeros((2, 8), np.bool_)]
    assert (
        encode(masks).hex()
        == "05020000e88788f900000076ff00bfe3c41851f7afc652c48264bd8269ed844fe52a3575f1fbe8348856"
    )
    assert encode([np.eye(3, dtype=np.bool_)]).hex() == "001101"


def test_the_grid_of_densities_is_fine_and_symmetric() -> None:
    chances = ans._CHANCES / 2**ans._PRECISION
    assert len(chances) == 254
    assert chances[126] == 0.5
    np.testing.assert_allclose(chances[:-1] + chances[-2::-1], 1, atol=1e-8)
    odds = chances / (1 - chances)
    np.testing.assert_allclose(odds[1:] / odds[:-1], 9 / 8, rtol=0.01)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "need 1 bytes, but only 0 are left"),
        ("01", "tag 1"),
        ("00" + "00" * 11, "need 12 bytes, but only 11"),
        ("05" + "00" * 12, "is encoded in 12 bytes; its bitmap has 12"),
        ("05", "levels of a mask need 1 bytes, but only 0"),
        ("05" + "02", "4 x 1 classes in 2 rows"),
        ("05" + "60", "1 x 64 classes in 2 rows"),
        ("05" + "01", "classes of rows of a mask need 1 bytes"),
        ("05" + "0102" + "05", "densities of a mask need 2 bytes, but only 1"),
        ("05" + "0142", "unused bits are not zero"),
        ("05" + "00" + "40" + "000000", "3 bytes of code, not a multiple of 4"),
    ],
)
def test_what_no_encoder_writes_is_refused_with_the_reason(message: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(bytes.fromhex(message), [(2, 46)])


@needs_package
def test_words_that_encode_nothing_are_refused() -> None:
    masks = independent([(2, 460)], 0.1)
    data = encode(masks)
    assert data[0] == ans.RANGE
    with pytest.raises(WireError, match="words that differ from the encoding of its bits"):
        decode(data + bytes(4), [(2, 460)])
    with pytest.raises(WireError):
        decode(data[:-4], [(2, 460)])


@needs_package
def test_damaged_messages_give_a_refusal_or_masks() -> None:
    shapes = [(12, 3, 3, 3), (25, 40), (40,), (), (0, 4)]
    sources: list[Masks] = [independent(shapes, d, seed=3) for d in (0.01, 0.1, 0.3, 0.7, 0.97)]
    ragged = independent(shapes, 0.1, seed=4)
    ragged[1][::3], ragged[1][1::5], ragged[0][4:] = False, True, True
    messages = [encode(masks) for masks in [*sources, ragged]]
    assert ans.RANGE in {message[0] for message in messages}
    count = FUZZ // 2
    refused = 0
    for data in damaged(messages, count):
        try:
            found = decode(data, shapes)
        except WireError:
            refused += 1
        else:
            assert [mask.shape for mask in found] == shapes
            assert all(mask.dtype == np.bool_ for mask in found)
    assert count // 2 < refused < count


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    ans._package.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(
        ImportError, match=r"needs constriction 0\.5; `pip install gossamer\[ans\]`"
    ):
        encode(independent([(20, 30)], 0.1))


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("constriction")
    ans._package.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.6.1")
    with pytest.raises(ImportError, match=r"by constriction 0\.5, but 0\.6\.1 is installed"):
        encode(independent([(20, 30)], 0.1))
