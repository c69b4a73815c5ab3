"""Declarations of options, and the calls that have them.

Each option is declared once. Its flag, keyword, help, checks and reference page follow from the
declaration. Kinds of input and outputs declare their own options next to their code.
"""
