"""The names of splits: which ones a data set can have, and which split the name of a folder or a file says.

Names are read as Hugging Face `datasets` reads them (data_files.py: SPLIT_KEYWORDS): a name says a split that holds one
of the words below, set off by the name's ends, `-`, `.`, `_`, a blank or a digit (`val2017`, `my-train_set`). A whole
name that is such a word counts in any case (`Train`). Where a name holds words of two splits it says nothing.
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
TRAIN_SPLIT = (
    "train"  # the split that training takes, where there is one, and that others are compared with
)
_SPLIT_WORD = re.compile(
    rf"(?:^|[-._ 0-9])({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?=$|[-._ 0-9])"
)
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
MAX_SPLIT_NAME_LENGTH = 128  # a split's name is a part of files' names, which may have 255 bytes


def detect_split(name: str) -> str | None:
    """The split that the name of a folder, or of a file without its extension, says.

    >>> [detect_split(name) for name in ("val2017", "Train", "my-test.set", "latest", "train_val")]
    ['validation', 'train', 'test', None, None]
    """
    if (exact_split := SPLIT_WORDS.get(name.lower())) is not None:
        return exact_split
    splits = {SPLIT_WORDS[word] for word in _SPLIT_WORD.findall(name)}
    return splits.pop() if len(splits) == 1 else None


def check_split_name(name: str) -> str:
    """The name, if shards, folders and TensorFlow Datasets can carry it; UsageError if not."""
    if not is_split_name(name):
        name_text = ascii(name) if len(name) <= MAX_SPLIT_NAME_LENGTH else f"of {len(name)} letters"
        raise UsageError(
            f"split name {name_text}: letters, digits and _ only, with single . or - between them, {MAX_SPLIT_NAME_LENGTH} at most"
        )
    return name


def is_split_name(name: str) -> bool:
    """Returns whether a split may have this name.

    >>> [is_split_name(name) for name in ("train", "a.b-c", "..", "a/b", "")]
    [True, True, False, False, False]
    """
    return len(name) <= MAX_SPLIT_NAME_LENGTH and _SPLIT_NAME.fullmatch(name) is not None
