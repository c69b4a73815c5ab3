"""Options of JSON Lines."""

from __future__ import annotations

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.options.declare import declare
from recordmill.sources.common.options import LineOptions, TableOptions


class JsonlOptions(
    TableOptions, LineOptions, heading="text, JSONL, CSV and tables of images", decides=True
):
    """Options of JSON Lines.

    Attributes:
        record_path: Keys that lead to the array with the records in each file, with dots between
            them. None means that a file is lines or an array.
    """

    record_path: str | None = declare(
        "member of a JSON document that contains the array of records, such as `data` or `result.records`",
        default=None,
        metavar="KEY",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self.record_keys):
            raise UsageError(
                "{record_path}: write the key of the array, or keys with dots between them",
                record_path=option("record_path", self.record_path),
            )

    @property
    def record_keys(self) -> tuple[str, ...]:
        """The keys that lead to the array with the records.

        >>> JsonlOptions(record_path="result.records").record_keys, JsonlOptions().record_keys
        (('result', 'records'), ())
        """
        return () if self.record_path is None else tuple(self.record_path.split("."))
