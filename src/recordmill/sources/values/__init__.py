"""Casts of values to features: text, Arrow types, labels, and unified schemas."""
