"""Federations: who takes part, what each client holds, what the server may test on.

>>> clothes = federation("fmnist-mini", "dirichlet:0.3", pool=20)
>>> len(clothes.pool), clothes.classes, len(clothes.test)
(20, 10, 2000)
"""

from gossamer.data.arrays import Arrays, Index, Labels, Pool, Split
from gossamer.data.columns import columns
from gossamer.data.division import Partition
from gossamer.data.download import DownloadError
from gossamer.data.federation import Augment, Federation
from gossamer.data.inputs import Features, Images, Inputs, Tokens
from gossamer.data.notes import DataWarning
from gossamer.data.opening import Entry, federation, get, listing, load
from gossamer.data.partitions import PARTITIONS, parse
from gossamer.data.picture import picture
from gossamer.data.sources import FORMATS, SOURCES, Source, hugging_face
from gossamer.data.synthetic import Synthetic
from gossamer.data.tensors import Tensors, federate

ls = listing

__all__ = [
    "FORMATS",
    "PARTITIONS",
    "SOURCES",
    "Arrays",
    "Augment",
    "DataWarning",
    "DownloadError",
    "Entry",
    "Features",
    "Federation",
    "Images",
    "Index",
    "Inputs",
    "Labels",
    "Partition",
    "Pool",
    "Source",
    "Split",
    "Synthetic",
    "Tensors",
    "Tokens",
    "columns",
    "federate",
    "federation",
    "get",
    "hugging_face",
    "load",
    "ls",
    "parse",
    "picture",
]
