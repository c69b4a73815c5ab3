"""Declarations of all options.

Each option is declared once. Its flag, keyword, help, checks and reference page follow from the
declaration.
"""
