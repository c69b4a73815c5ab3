"""The functions of the native library, which take and return arrays.

The file native.pyi contains the types of the functions, and native/recordmill.h their
documentation.
"""

from __future__ import annotations

from recordmill.base.library import load_library

globals().update(load_library())
