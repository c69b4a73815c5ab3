"""Everything that reads a data set: `open` it, and the types that its columns have."""

from recordmill.reader.collating.ways import Bucketed, OneHot, Packed, Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.records.writers.npy import open_columns

__all__ = ["Bucketed", "Dataset", "OneHot", "Packed", "Padded", "Ragged", "Strings", "open", "open_columns"]
