"""The functions of native/recordmill.h: arrays in, arrays out. native.pyi has their types, the header their docs."""

from __future__ import annotations

from recordmill.base.library import load_library

globals().update(load_library())
