"""Split words in names are detected as in Hugging Face's datasets."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.schemas.splits import SPLIT_WORDS, detect_split


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *[(word, split) for word, split in SPLIT_WORDS.items()],
        *[
            ("Train", "train"),
            ("TEST", "test"),
            ("train2017", "train"),
            ("2017train", "train"),
            ("my-val.set", "validation"),
            ("a_dev_b", "validation"),
        ],
        *[
            ("test images", "test"),
            ("eval_1", "test"),
            ("latest", None),
            ("trainer", None),
            ("contest", None),
            ("Dev_Patel", None),
            ("trainval", None),
        ],
        *[
            ("train_test", None),
            ("train-val", None),
            ("train_training", "train"),
            ("", None),
            ("évaluation", None),
            ("x+test", None),
        ],
    ],
)
def test_split_word_of_a_name_is_detected(name: str, split: str | None) -> None:
    assert detect_split(name) == split


@given(st.text(st.sampled_from("train val dev-._ 0xé"), max_size=12))
def test_split_words_are_found_like_in_hugging_face_datasets(name: str) -> None:
    # The patterns of datasets/data_files.py (KEYWORDS_IN_DIR_NAME_BASE_PATTERNS) for one folder.
    separators = "-._ 0-9"
    patterns = (
        "{}",
        "{}[" + separators + "]*",
        "*[" + separators + "]{}",
        "*[" + separators + "]{}[" + separators + "]*",
    )
    expected = {
        split
        for word, split in SPLIT_WORDS.items()
        for p in patterns
        if re.match(fnmatch.translate(p.format(word)), name)
    }
    assert detect_split(name) == (expected.pop() if len(expected) == 1 else None)
