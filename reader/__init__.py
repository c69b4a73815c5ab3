"""Everything that reads a data set: `open` it, and the types that its columns have."""

from recordmill.reader.dataset import Dataset, open
from recordmill.records.npy_writer import open_columns
from recordmill.records.ragged import Ragged, Strings

__all__ = ["Dataset", "Ragged", "Strings", "open", "open_columns"]
