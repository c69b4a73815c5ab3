"""Reading of data sets, and the types of their columns."""

from recordmill.reader.dataset import Dataset, open
from recordmill.reader.options.collation import Bucketed, OneHot, Packed, Padded
from recordmill.reader.options.images import Images, RandomCrop
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.records.writers.npy import open_columns

__all__ = [
    "Bucketed",
    "Dataset",
    "Images",
    "OneHot",
    "Packed",
    "Padded",
    "Ragged",
    "RandomCrop",
    "Strings",
    "open",
    "open_columns",
]
