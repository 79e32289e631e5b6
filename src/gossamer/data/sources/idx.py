"""MNIST and Fashion-MNIST in the IDX format of LeCun, compressed or not."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes, Images
from gossamer.data.sources.source import Remote, Source
from gossamer.data.sources.unpacked import unpacked

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
FILES = tuple(f"{part}-ubyte.gz" for part in PARTS)
PLAIN = tuple(f"{part}-ubyte" for part in PARTS)

# sha256 of the values without the header: the same however the files were compressed.
SHA256 = {
    "mnist": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
    "fmnist": (
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
}


def read_idx(path: Path, *, anew: bool = False) -> Bytes:
    """The array of bytes in one IDX file; its name says whether it is compressed.

    `anew`: not as it was unpacked before.
    """
    if path.suffix == ".gz":
        try:
            content = unpacked(path, gzip.decompress, anew=anew)
        except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
            raise ValueError(f"{path} is damaged ({damage}); download it again") from None
    else:
        content = path.read_bytes()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of bytes; download it again")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = [int(size) for size in np.frombuffer(content[4:header], ">u4")]
    if len(content) - header != int(np.prod(shape)):
        raise ValueError(
            f"{path} has {len(content) - header} values where its header promises {shape}; "
            f"download it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def existing(folder: Path, plain: str) -> Path:
    """The compressed file if it is there, else the plain one."""
    compressed = folder / f"{plain}.gz"
    return compressed if compressed.exists() else folder / plain


def read(name: str, folder: Path, images: Images) -> Arrays:
    """The four files of a folder, each proved by its checksum."""
    arrays = []
    for plain, proof in zip(PLAIN, SHA256[name], strict=True):
        path = existing(folder, plain)
        for anew in (False, True):
            array = read_idx(path, anew=anew)
            digest = hashlib.sha256(array.data).hexdigest()
            if digest == proof:
                break
        else:
            raise ValueError(
                f"{path} holds values with sha256 {digest[:12]}…, the official {name} has "
                f"{proof[:12]}…; get it again with `gossamer data get {name}`"
            )
        arrays.append(array)
    train, train_labels, test, test_labels = arrays
    labels = Labels(train_labels.astype(np.int64), test_labels.astype(np.int64), 10)
    return Arrays(name, images, train[..., None], test[..., None], labels)


FMNIST_IMAGES = Images((28, 28, 1), (0.2860,), (0.3530,), flips=True)


def read_fmnist(folder: Path) -> Arrays:
    """Clothes, 28 x 28, white on black."""
    return read("fmnist", folder, FMNIST_IMAGES)


def read_mnist(folder: Path) -> Arrays:
    """Digits, 28 x 28, white on black; mirrored digits are no digits, so no augmentation."""
    return read("mnist", folder, Images((28, 28, 1), (0.1307,), (0.3081,)))


def _remotes(md5: tuple[str, ...], *places: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(file, proof, tuple(place + file for place in places))
        for file, proof in zip(FILES, md5, strict=True)
    )


FMNIST = Source(
    name="fmnist",
    title="Fashion-MNIST",
    classes=10,
    train=60_000,
    test=10_000,
    shape=(1, 28, 28),
    licence="MIT",
    read=read_fmnist,
    files=FILES,
    folders=("fmnist/FashionMNIST/raw", "FashionMNIST/raw", "fashion-mnist", "fashion_mnist"),
    system=("/usr/share/datasets/fashion-mnist",),
    remotes=_remotes(
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)

MNIST = Source(
    name="mnist",
    title="MNIST",
    classes=10,
    train=60_000,
    test=10_000,
    shape=(1, 28, 28),
    licence="CC BY-SA 3.0",
    read=read_mnist,
    files=FILES,
    folders=("mnist/MNIST/raw", "MNIST/raw"),
    remotes=_remotes(
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
