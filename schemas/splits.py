"""Names of splits, and their detection in names of folders and files.

Names are read as Hugging Face `datasets` reads them (data_files.py: SPLIT_KEYWORDS). A name belongs
to a split if it contains one of SPLIT_WORDS between separators, as in `val2017` or `my-train_set`.
Separators are the ends of the name, `-`, `.`, `_`, a space and digits. A name that is only such a
word may have any case, as in `Train`. A name with words of two splits belongs to no split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from recordmill.base.errors import UsageError

SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# The split for training. Other splits are compared with it.
TRAIN_SPLIT = "train"
_SPLIT_WORD = re.compile(
    rf"(?:^|[-._ 0-9])({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?=$|[-._ 0-9])"
)
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
# The name of a split is a part of file names, which can have at most 255 bytes.
MAX_SPLIT_NAME_LENGTH = 128


def detect_split(name: str) -> str | None:
    """Returns the split that a name contains, or None.

    Args:
        name: The name of a folder, or of a file without its extension.

    >>> [detect_split(name) for name in ("val2017", "Train", "my-test.set")]
    ['validation', 'train', 'test']
    >>> detect_split("latest"), detect_split("train_val")
    (None, None)
    """
    if (exact_split := SPLIT_WORDS.get(name.lower())) is not None:
        return exact_split
    splits = {SPLIT_WORDS[word] for word in _SPLIT_WORD.findall(name)}
    return splits.pop() if len(splits) == 1 else None


def check_split_name(name: str) -> str:
    """Returns the name if it is valid for shards, folders and TensorFlow Datasets.

    Raises:
        UsageError: The name is not valid.
    """
    if not is_split_name(name):
        name_text = ascii(name) if len(name) <= MAX_SPLIT_NAME_LENGTH else f"of {len(name)} letters"
        raise UsageError(
            f"split name {name_text}: letters, digits and _ only, with single . or - between them, {MAX_SPLIT_NAME_LENGTH} at most"
        )
    return name


def is_split_name(name: str) -> bool:
    """Returns whether a split can have this name.

    >>> [is_split_name(name) for name in ("train", "a.b-c", "..", "a/b", "")]
    [True, True, False, False, False]
    """
    return len(name) <= MAX_SPLIT_NAME_LENGTH and _SPLIT_NAME.fullmatch(name) is not None
