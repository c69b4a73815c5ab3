"""The functions of the native library, which take and return arrays.

Their types are in native.pyi, their documentation is in native/recordmill.h.
"""

from __future__ import annotations

from recordmill.base.library import load_library

globals().update(load_library())
