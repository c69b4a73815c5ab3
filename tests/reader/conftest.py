"""A data set for the tests of several folders."""

import pytest
from kit.token_sets import make_token_set

from recordmill.reader.dataset import Dataset


@pytest.fixture(scope="module")
def token_set(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set of lists of tokens."""
    return make_token_set(tmp_path_factory.mktemp("tokens"))
