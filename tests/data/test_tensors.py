from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core import Key
from gossamer.data import Arrays, Federation, Images, Index, Inputs, Labels, Tensors, federation
from gossamer.data.tensors import hold_out


def colours(train: int = 60, test: int = 20) -> Arrays:
    draw = Key(5).numpy()
    x = draw.integers(0, 256, size=(train + test, 6, 5, 3), dtype=np.uint8)
    y = np.arange(train + test) % 4
    kind = Images((6, 5, 3), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), flips=True)
    return Arrays("colours", kind, x[:train], x[train:], Labels(y[:train], y[train:], 4))


def test_it_is_a_federation() -> None:
    made: Federation = federation(colours(), pool=5)
    assert len(made.pool) == 5
    assert made.classes == 4


def test_images_are_channels_last_floats_with_their_own_pixels() -> None:
    arrays = colours()
    made = federation(arrays, pool=5, inputs=Inputs("raw"))
    assert isinstance(made, Tensors)
    x = made.client(2).train.x
    assert x.dtype == torch.float32
    assert x.shape == (12, 3, 6, 5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    stored = arrays.train[made.train[2]]
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), stored.astype(np.float32))


def test_scales() -> None:
    raw, unit, normal = (
        federation(colours(), pool=5, inputs=Inputs(scale)).client(0).train.x
        for scale in ("raw", "unit", "normalised")
    )
    assert torch.allclose(unit, raw / 255, atol=1e-6)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    assert torch.allclose(normal, (raw / 255 - mean) / std, atol=1e-5)
    with pytest.raises(ValueError, match="no scale 'dark'; use one of normalised, unit, raw"):
        federation(colours(), pool=5, inputs=Inputs("dark"))  # type: ignore[arg-type]


def test_a_clients_test_data_are_rows_of_the_servers() -> None:
    made = federation(colours(), "dirichlet:0.5", pool=5, least=1)
    assert len(made.test) == 20
    seen = []
    for client in made.pool:
        own, rows = made.client(client.id).test, made.test_rows(client.id)
        assert rows is not None
        assert torch.equal(own.x, made.test.x[rows])
        assert torch.equal(own.y, made.test.y[rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(20))


def test_clients_come_with_their_number_of_training_examples() -> None:
    made = federation(colours(), "dirichlet:1", pool=4, valid=0.25)
    for client in made.pool:
        data = made.client(client.id)
        assert client.examples == len(data.train)
        assert len(data.valid) == round(0.25 * (len(data.train) + len(data.valid)))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=80),
    st.floats(0, 0.99),
    st.integers(0, 1000),
)
def test_holding_out_loses_nothing_and_empties_nobody(
    owners: list[int], fraction: float, seed: int
) -> None:
    whole = Index.of(np.asarray(owners), 10)
    kept, held = hold_out(whole, fraction, Key(seed))
    for id in range(10):
        together = sorted([*kept[id], *held[id]])
        assert together == whole[id].tolist()
        assert len(kept[id]) > 0 or len(whole[id]) == 0


def test_holding_out_takes_random_rows() -> None:
    whole = Index.of(np.zeros(100, np.int64), 1)
    one, two = (hold_out(whole, 0.5, Key(seed))[1].rows for seed in (1, 2))
    assert not np.array_equal(one, two)
    assert set(one) != set(range(50))


def test_valid_must_leave_something_to_train_on() -> None:
    with pytest.raises(ValueError, match=r"valid is 1\.0, but must be a fraction"):
        federation(colours(), pool=5, valid=1.0)


def test_augmentation_is_there_when_asked_for() -> None:
    assert federation(colours(), pool=5).augment is None
    change = federation(colours(), pool=5, inputs=Inputs(augment=True)).augment
    assert change is not None
    x = federation(colours(), pool=5).client(0).train.x
    assert change(x, Key(0)).shape == x.shape


def test_padding_is_black_whatever_the_scale() -> None:
    for scale, black in (("raw", 0.0), ("normalised", -0.25)):
        kind = Images((2, 2, 1), (0.1,), (0.4,), flips=True)
        dark = np.zeros((4, 2, 2, 1), np.uint8)
        zeros = np.zeros(4, np.int64)
        made = federation(
            Arrays("dark", kind, dark, dark, Labels(zeros, zeros, 1)),
            pool=1,
            inputs=Inputs(scale, augment=True),  # type: ignore[arg-type]
        )
        assert made.augment is not None
        out = made.augment(made.client(0).train.x, Key(0))
        assert torch.allclose(out, torch.full_like(out, black))


def test_descriptions_are_facts() -> None:
    facts = federation(colours(), pool=5, valid=0.5).describe()
    assert facts["train"] == 30
    assert facts["valid"] == 30
    assert facts["test"] == 20
    assert facts["shape"] == (3, 6, 5)
    assert facts["partition"] == "iid"
    assert facts["mean"] == (0.1, 0.2, 0.3)


def test_arrays_refuse_labels_that_do_not_fit() -> None:
    x, y = np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int64)
    kind = Images((2, 2, 1), (0.0,), (1.0,))
    with pytest.raises(ValueError, match="3 test examples but 2 labels"):
        Arrays("odd", kind, x, x, Labels(y, y[:2], 1))
    with pytest.raises(ValueError, match="labels from 0 to 0 for 0 classes"):
        Arrays("odd", kind, x, x, Labels(y, y, 0))
    with pytest.raises(ValueError, match="no training examples"):
        Arrays("odd", kind, x[:0], x, Labels(y[:0], y, 1))
