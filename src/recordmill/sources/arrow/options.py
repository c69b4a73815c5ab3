"""Options of NumPy files. Parquet and Arrow need only `TableOptions`."""

from __future__ import annotations

from recordmill.options.declare import redeclare
from recordmill.sources.common.options import InputOptions, TableOptions


class NumpyOptions(InputOptions):
    """Options of NumPy files.

    Attributes:
        columns: The arrays to read. x_train can be selected by this name, or by x, the name of its
            feature. None means all arrays.
        split_from: The rule that determines the split, as in `read_layout`. With `none`, arrays for
            several splits such as x_train and x_test are read one after the other into the same
            split.
    """

    columns: tuple[str, ...] | None = redeclare(TableOptions)
