"""Names of splits, and their detection in the names of folders and files.

The rules follow Hugging Face `datasets` (SPLIT_KEYWORDS in data_files.py). A name belongs to a
split if it contains one of SPLIT_WORDS between separators, as in `val2017` or `my-train_set`.
Separators are `-`, `.`, `_`, spaces, digits, and the ends of the name. Case matters, unless the
complete name is one of these words, as in `Train`. A name with words of two splits belongs to none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from recordmill.base.errors import UsageError

# The split that each of these words means.
SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# Name of the training split. Checks compare the other splits with it.
TRAIN_SPLIT = "train"
_SPLIT_WORD = re.compile(
    rf"(?:^|[-._ 0-9])({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?=$|[-._ 0-9])"
)
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
# The name of a split is a part of file names, and file systems limit these to 255 bytes.
MAX_SPLIT_NAME_LENGTH = 128


def detect_split(name: str) -> str | None:
    """Returns the split that a name belongs to, or None.

    The docstring of this module explains the rules.

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
    """Returns the name if it is valid, and raises UsageError otherwise.

    A valid name can be used for shards, for folders and in TensorFlow Datasets.

    Raises:
        UsageError: The name has other characters, or is too long.
    """
    if not is_split_name(name):
        name_text = ascii(name) if len(name) <= MAX_SPLIT_NAME_LENGTH else f"of {len(name)} letters"
        raise UsageError(
            f"split name {name_text}: letters, digits and _ only, with single . or - between them, {MAX_SPLIT_NAME_LENGTH} at most"
        )
    return name


def is_split_name(name: str) -> bool:
    """Returns whether a name is valid for a split.

    >>> [is_split_name(name) for name in ("train", "a.b-c", "..", "a/b", "")]
    [True, True, False, False, False]
    """
    return len(name) <= MAX_SPLIT_NAME_LENGTH and _SPLIT_NAME.fullmatch(name) is not None
