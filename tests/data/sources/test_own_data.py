"""Your own data is read as it was meant, or the reader says what it did or what it needs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gossamer.cli import main
from gossamer.data import DataWarning, Inputs, federation, load


def paint(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 0, 0)).save(path)


@pytest.fixture
def several_sizes(tmp_path: Path) -> Path:
    for number in range(6):
        paint(tmp_path / "cat" / f"{number}.png", (6, 4))
        paint(tmp_path / "dog" / f"{number}.png", (6, 4) if number else (12, 9))
    return tmp_path


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pictures_of_several_sizes_are_refused_whatever_the_seed(
    several_sizes: Path, seed: int
) -> None:
    with pytest.raises(ValueError, match=r"2 sizes: 6x4 \(11\), 12x9 \(1\); .*`size='6x4'`"):
        federation(f"folder:{several_sizes}", pool=2, seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pictures_are_resized_to_the_size_asked_for(several_sizes: Path, seed: int) -> None:
    where = f"folder:{several_sizes}"
    made = federation(where, pool=2, seed=seed, inputs=Inputs(size="10x5"))
    assert made.shape == (3, 5, 10)
    assert federation(where, pool=2, seed=seed, inputs=Inputs(size="8")).shape == (3, 8, 8)


def test_a_size_is_one_or_two_whole_numbers() -> None:
    for wrong in ("0", "8x8x8", "large", "8x-1"):
        with pytest.raises(ValueError, match="WIDTHxHEIGHT such as 64x48"):
            Inputs(size=wrong)


def test_test_pictures_of_a_class_without_training_pictures_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        paint(tmp_path / "train" / "cat" / f"{number}.png", (6, 4))
        paint(tmp_path / "test" / "dog" / f"{number}.png", (6, 4))
    with pytest.raises(ValueError, match=r"has classes that .*train lacks: dog"):
        load(f"folder:{tmp_path}")


ROWS = [(i % 3, i, i / 2, i % 7) for i in range(30)]


def table(path: Path, header: str, between: str = ",", rows: list[tuple[float, ...]] = ROWS) -> str:
    lines = [between.join(map(str, row)) for row in rows]
    path.write_text("\n".join([header, *lines] if header else lines))
    return f"csv:{path}"


@pytest.mark.parametrize("name", ["label", "target", "class", "y", "Target", "CLASS"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_usual_name_of_labels_is_recognised_in_any_column(
    tmp_path: Path, name: str, place: int
) -> None:
    names, rows = ["a", "b", "c"], [list(row[1:]) for row in ROWS]
    names.insert(place, name)
    for row, (label, *_) in zip(rows, ROWS, strict=True):
        row.insert(place, label)
    found = load(table(tmp_path / "t.csv", ",".join(names), rows=rows))
    assert found.labels.classes == 3 and found.kind.shape == (3,)
    assert np.array_equal(found.train[np.arange(24)][:, 0] % 3, found.labels.train)


def test_the_label_can_be_named_or_counted(tmp_path: Path) -> None:
    with_header = table(tmp_path / "named.csv", "kind,a,b,c")
    assert load(with_header, inputs=Inputs(label="kind")).labels.classes == 3
    assert load(with_header, inputs=Inputs(label="c")).labels.classes == 7
    without = table(tmp_path / "plain.csv", "")
    assert load(without, inputs=Inputs(label="1")).labels.classes == 3
    with pytest.raises(ValueError, match="no column 'nothing'; its columns are kind, a, b, c"):
        load(with_header, inputs=Inputs(label="nothing"))
    with pytest.raises(ValueError, match="no column '9'; its columns have no names"):
        load(without, inputs=Inputs(label="9"))


def test_a_guessed_label_is_noted(tmp_path: Path) -> None:
    where = table(tmp_path / "t.csv", "kind,a,b,c")
    with pytest.warns(DataWarning, match="the last one, 'c', was taken as the label; `label=`"):
        assert load(where).labels.classes == 7


def test_two_columns_that_may_be_the_label_are_refused(tmp_path: Path) -> None:
    where = table(tmp_path / "t.csv", "class,a,b,target")
    with pytest.raises(ValueError, match="2 columns that may be the label: 'class', 'target'"):
        load(where)
    assert load(where, inputs=Inputs(label="class")).labels.classes == 3


def test_the_only_column_of_words_is_the_label(tmp_path: Path) -> None:
    rows = [("cat" if i % 2 else "dog", i, i / 2) for i in range(30)]
    for header in ("animal,a,b", ""):
        found = load(table(tmp_path / "t.csv", header, rows=rows))
        assert found.labels.classes == 2 and len(found.train) + len(found.test) == 30
        assert np.array_equal(found.train[np.arange(24)][:, 0] % 2 == 0, found.labels.train == 1)


def test_measurements_are_no_classes(tmp_path: Path) -> None:
    rows = [(i % 3, i, i / 7) for i in range(200)]
    where = table(tmp_path / "t.csv", "", rows=rows)
    with pytest.raises(ValueError, match=r"200 different values such as .* no classes; .*`label=`"):
        load(where)
    where = table(tmp_path / "t.csv", "", rows=[(i % 3, i) for i in range(200)])
    with pytest.raises(ValueError, match=r"200 different labels in 200 examples.*`label=`"):
        load(where)


@pytest.mark.parametrize("between", [";", "\t", "|", "; "])
def test_columns_are_separated_by_other_characters_too(tmp_path: Path, between: str) -> None:
    found = load(table(tmp_path / "t.csv", between.join(["label", "a", "b", "c"]), between))
    assert found.labels.classes == 3 and found.kind.shape == (3,)


def test_decimal_commas_between_semicolons_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label;a;b\n" + "\n".join(f"{i % 2};{i},5;{i}" for i in range(20)))
    values = load(f"csv:{path}").train[np.arange(16)]
    assert np.array_equal(values[:, 0], values[:, 1] + 0.5)


def test_quoted_cells_may_have_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"label","a"\n' + "\n".join(f'"x, {i % 2}",{i}' for i in range(20)))
    found = load(f"csv:{path}")
    assert found.labels.classes == 2 and found.kind.shape == (1,)


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (20, *shape)).astype(np.uint8)


def archive(path: Path, x: np.ndarray, y: np.ndarray | None = None) -> str:
    np.savez(path, x=x, y=np.arange(20) % 2 if y is None else y)
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ((3, 32, 32), (3, 32, 32)),
        ((32, 32, 3), (3, 32, 32)),
        ((1, 28, 28), (1, 28, 28)),
        ((28, 20, 1), (1, 28, 20)),
        ((3, 48, 64), (3, 48, 64)),
        ((4, 4, 1), (1, 4, 4)),
        ((3, 4, 4), (3, 4, 4)),
    ],
)
def test_the_channels_of_bytes_are_found(
    tmp_path: Path, stored: tuple[int, ...], read: tuple[int, ...]
) -> None:
    x = images(*stored)
    made = federation(archive(tmp_path / "x.npz", x), pool=1, inputs=Inputs("raw"))
    assert made.shape == read
    whole = made.client(0).train.x
    pictures = x if stored == read else x.transpose(0, 3, 1, 2)
    assert any(np.array_equal(whole[0].numpy(), picture) for picture in pictures)


@pytest.mark.parametrize("stored", [(3, 3, 3), (8, 8, 12), (3, 16, 1), (6, 5, 7)])
def test_channels_that_cannot_be_seen_are_asked_for(
    tmp_path: Path, stored: tuple[int, int, int]
) -> None:
    where = archive(tmp_path / "x.npz", images(*stored))
    with pytest.raises(
        ValueError, match="say `layout='nhwc'` if they are the last, `layout='nchw'`"
    ):
        load(where)
    first, middle, last = stored
    assert load(where, inputs=Inputs(layout="nhwc")).kind.shape == (last, first, middle)
    assert load(where, inputs=Inputs(layout="nchw")).kind.shape == stored


def test_images_of_floats_with_channels_last_become_channels_first(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.npz", images(12, 12, 3).astype(np.float32))
    assert load(where).kind.shape == (3, 12, 12)
    where = archive(tmp_path / "x.npz", images(3, 12, 12).astype(np.float32))
    assert load(where).kind.shape == (3, 12, 12)


@pytest.mark.parametrize("labels", [[0, 1000, 2000], [5, 10**9], [-1, 1]])
def test_labels_with_gaps_are_numbered_in_order_and_noted(
    tmp_path: Path, labels: list[int]
) -> None:
    y = np.asarray(labels)[np.arange(20) % len(labels)]
    where = archive(tmp_path / "x.npz", np.arange(20.0)[:, None], y)
    told = f"{len(labels)} labels from {labels[0]} to {labels[-1]}; they were numbered 0 to "
    with pytest.warns(DataWarning, match=told):
        found = load(where)
    assert found.labels.classes == len(labels)
    rows = found.train[np.arange(16)][:, 0].astype(int)
    assert np.array_equal(rows % len(labels), found.labels.train)


def test_a_class_without_examples_is_noted(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.npz", np.ones((20, 2)), 1 + np.arange(20) % 4)
    with pytest.warns(DataWarning, match="5 outputs, but no example of class 0"):
        assert load(where).labels.classes == 5


def test_negative_labels_and_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.npz", np.ones((20, 2)), np.arange(20) % 4 - 1)
    with pytest.raises(ValueError, match="labels from -1 to 2; number the classes from 0"):
        load(where)
    np.savez(tmp_path / "x.npz", x=np.ones((50, 2)), y=np.arange(50))
    with pytest.raises(ValueError, match="50 different labels in 50 examples"):
        load(where)


def test_classes_that_only_the_test_data_has_are_noted(tmp_path: Path) -> None:
    path, x = tmp_path / "x.npz", np.ones((6, 2))
    np.savez(path, x_train=x, y_train=[0, 1] * 3, x_test=x, y_test=[0, 1, 2, 2, 1, 0])
    told = r"test examples of class 2 but no training examples.* \(2 of 6 test examples\)"
    with pytest.warns(DataWarning, match=told):
        load(f"npz:{path}")


@pytest.mark.parametrize("field", ["x", "y"])
def test_a_single_number_is_no_array(tmp_path: Path, field: str) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **{"x": np.ones((4, 2)), "y": np.zeros(4, int), field: np.array(7)})
    with pytest.raises(ValueError, match=f"{field} in .* is the single value 7; save arrays"):
        load(f"npz:{path}")


def test_training_and_test_examples_have_one_shape(tmp_path: Path) -> None:
    path, y = tmp_path / "x.npz", np.zeros(4, int)
    np.savez(path, x_train=np.ones((4, 2)), y_train=y, x_test=np.ones((4, 3)), y_test=y)
    with pytest.raises(ValueError, match=r"shape \(2,\) and test examples of shape \(3,\)"):
        load(f"npz:{path}")


def test_settings_of_another_format_are_refused(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.npz", np.ones((20, 2)))
    with pytest.raises(ValueError, match=r"`label=` is for data in csv:, not for 'npz:"):
        load(where, inputs=Inputs(label="a"))
    with pytest.raises(ValueError, match=r"`size=` is for data in folder:, not for 'fmnist-mini'"):
        federation("fmnist-mini", pool=2, inputs=Inputs(size="8"))
    with pytest.raises(ValueError, match=r"synthetic is drawn, not read.*`layout=`"):
        federation("synthetic", pool=2, inputs=Inputs(layout="nchw"))


def test_the_command_line_has_the_settings_and_prints_notes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = table(tmp_path / "t.csv", "kind,a,b,c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a note is printed, whatever the filters are
        assert main(["partition", "--data", where, "--pool", "2"]) == 0
    said = capsys.readouterr()
    assert said.err.count("note: ") == 1 and "--label names another" in said.err
    assert main(["partition", "--data", where, "--pool", "2", "--label", "kind"]) == 0
    said = capsys.readouterr()
    assert not said.err and "classes" in said.out
    assert main(["partition", "--data", where, "--pool", "2", "--size", "8"]) == 2
    assert "--size is for data in folder:" in capsys.readouterr().err
