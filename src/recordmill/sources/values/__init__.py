"""Casts of values to the types of features: numbers and times in text, Arrow casts, one schema from several, labels."""
