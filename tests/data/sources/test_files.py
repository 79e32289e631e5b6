from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gossamer.data import Features, Images, Inputs, federation, load


def test_npz_of_images(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    x = np.arange(20 * 4 * 4, dtype=np.int64).astype(np.uint8).reshape(20, 4, 4)
    np.savez(path, x_train=x, y_train=np.arange(20) % 2, x_test=x[:6], y_test=np.arange(6) % 2)
    made = federation(f"npz:{path}", pool=4)
    assert made.client(0).train.x.shape == (5, 1, 4, 4)
    assert len(made.test) == 6
    kind = load(f"npz:{path}").kind
    assert isinstance(kind, Images)
    assert kind.mean[0] == pytest.approx(float((x / 255).mean()))
    assert kind.std[0] == pytest.approx(float((x / 255).std()))


def test_npz_of_features_is_split_by_key_and_standardised(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    x = np.stack([np.arange(50.0), np.full(50, 7.0)], axis=1)
    np.savez(path, x=x, y=np.arange(50) % 5)
    arrays = load(f"npz:{path}")
    assert isinstance(arrays.kind, Features)
    assert len(arrays.train) == 40
    both = [*arrays.train[np.arange(40)][:, 0], *arrays.test[np.arange(10)][:, 0]]
    assert sorted(both) == list(range(50))
    made = federation(f"npz:{path}", pool=1).client(0).train.x
    assert made[:, 0].mean().abs() < 1e-5
    assert made[:, 1].tolist() == [0.0] * 40
    raw = federation(f"npz:{path}", pool=1, inputs=Inputs("raw")).client(0).train.x
    assert raw[:, 1].tolist() == [7.0] * 40
    other = federation(f"npz:{path}", pool=1, seed=1, inputs=Inputs("raw")).client(0).train.x
    assert set(raw[:, 0].tolist()) != set(other[:, 0].tolist())


def test_npz_may_have_groups(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.ones((50, 2)), y=np.zeros(50, int), group=np.arange(50) % 3)
    assert len(federation(f"npz:{path}").pool) == 3


def test_npz_without_the_right_names_says_what_to_save(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.zeros(3))
    with pytest.raises(ValueError, match="has images; save x and y, or x_train, y_train"):
        load(f"npz:{path}")
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"labels in .* are float64 of shape \(3,\)"):
        load(f"npz:{path}")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz does not exist"):
        load("npz:nowhere.npz")


def test_npz_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.asarray([{}], object), y=np.zeros(1, int))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load(f"npz:{path}")


def test_csv_takes_the_last_column_or_the_one_named_label(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join(f"{i},{i / 2},{'yes' if i % 2 else 'no'}" for i in range(20)))
    plain = load(f"csv:{path}")
    assert plain.labels.classes == 2
    x = plain.train[np.arange(16)]
    assert np.array_equal(x[:, 0] % 2, plain.labels.train)
    path.write_text("label,a,b\n" + "\n".join(f"{10 * (i % 3)},{i % 3},{i}" for i in range(30)))
    named = load(f"csv:{path}")
    assert named.labels.classes == 3
    assert np.array_equal(named.train[np.arange(24)][:, 0], named.labels.train)


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("1,2,0\n1,0\n")
    with pytest.raises(ValueError, match=r"line 2 of .* has 2 columns where the first has 3"):
        load(f"csv:{path}")
    path.write_text("1,2,0\n1,x,0\n")
    with pytest.raises(ValueError, match="a feature that is no number"):
        load(f"csv:{path}")
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        load(f"csv:{path}")


def paint(path: Path, colour: object, mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_folders_with_train_and_test(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("test", 2)):
        for number in range(count):
            paint(tmp_path / part / "cat" / f"{number}.png", (200, 0, 0))
            paint(tmp_path / part / "dog" / f"{number}.png", (0, 100, 0))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no picture")
    made = federation(f"folder:{tmp_path}", pool=2, inputs=Inputs("raw"))
    assert made.test.x.shape == (4, 3, 4, 6)
    assert made.test.y.tolist() == [0, 0, 1, 1]
    assert made.test.x[3].amax(dim=(1, 2)).tolist() == [0, 100, 0]


def test_folders_of_one_level_are_split_by_key(tmp_path: Path) -> None:
    for number in range(10):
        paint(tmp_path / "dark" / f"{number}.png", 10, "L")
        paint(tmp_path / "light" / f"{number}.png", 240, "L")
    arrays = load(f"folder:{tmp_path}")
    assert len(arrays.train) == 16
    assert len(arrays.test) == 4
    assert arrays.kind.shape == (1, 4, 6)
    values = arrays.train[np.arange(16)][:, 0, 0, 0]
    assert np.array_equal(values == 240, arrays.labels.train == 1)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="put the pictures of each class into one folder"):
        load(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="has no pictures"):
        load(f"folder:{tmp_path}")


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paint(tmp_path / "cat" / "0.png", (1, 2, 3))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs Pillow; install gossamer\[data\]"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"x": np.zeros((5, 2)), "y": np.zeros(4, int)}, "5 rows of x but 4 of y"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(5, int)}, "4 rows of x but 5 of y"),
        (
            {"x": np.zeros((4, 2)), "y": np.zeros(4, int), "group": np.zeros(9, int)},
            "4 rows of x but 9 of group",
        ),
        ({"x": np.array(["a"] * 9), "y": np.zeros(9, int)}, "examples of .* are <U1"),
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9, int)}, "not finite"),
        ({"x": np.full((9, 2), 1e300), "y": np.zeros(9, int)}, "not finite"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "no training examples"),
        ({"x": np.array([None] * 9), "y": np.zeros(9, int)}, "save plain arrays with np.savez"),
    ],
)
def test_an_npz_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, content: dict[str, np.ndarray], said: str
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **content)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        load(f"npz:{path}")


def npy() -> bytes:
    """One array, as np.save writes it."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"hello", b"", b"PK\x03\x04 cut short", npy()])
def test_a_file_that_is_no_npz_says_how_to_make_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.npz .*save plain arrays with np\.savez"):
        load(f"npz:{path}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b,label\n", "no training examples"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"1,2,0\n" * 5 + b"nan,2,0\n" * 20, "not finite"),
    ],
)
def test_a_csv_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load(f"csv:{path}")


def test_a_format_without_a_file_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="after the colon"):
        load("npz:")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load(f"csv:{tmp_path}")


def test_a_table_of_a_spreadsheet_or_of_pandas_has_the_same_labels(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 3},{i},{i / 2}" for i in range(30))
    path = tmp_path / "table.csv"
    path.write_text("\ufefflabel,a,b\n" + rows, encoding="utf-8")  # as spreadsheets save it
    found = load(f"csv:{path}")
    assert found.labels.classes == 3 and len(found.train) + len(found.test) == 30
    assert found.kind.shape == (2,)
    rows = "\n".join(f"{i},{i / 2},{i % 3}" for i in range(30))
    path.write_text("0,1,label\n" + rows)  # columns without names, but for one
    found = load(f"csv:{path}")
    assert found.labels.classes == 3 and len(found.train) + len(found.test) == 30


def test_labels_have_one_order_whatever_the_process(tmp_path: Path) -> None:
    words = ["1.0", "nan", "1", "b", "01", "-2", "a"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(f"{i},{words[i % 7]}" for i in range(70)))
    program = (
        "import sys\nfrom gossamer.data import load\nfound = load(sys.argv[1])\n"
        "print(found.labels.train.tolist())\n"
    )
    told = set()
    for seed in ("1", "2"):
        known = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, f"csv:{path}"]
        told.add(subprocess.run(command, env=known, capture_output=True, check=True).stdout)
    assert len(told) == 1


@pytest.mark.parametrize("count", [3, 12])
def test_groups_are_as_many_as_examples(tmp_path: Path, count: int) -> None:
    path = tmp_path / "arrays.npz"
    x, y = np.zeros((10, 2), np.float32), np.arange(10) % 2
    group = np.zeros(count, np.int64)
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(path, **parts, group_train=group, group_test=np.zeros(10, np.int64))
    with pytest.raises(ValueError, match=f"has 10 training examples but groups of {count}"):
        load(f"npz:{path}")
