"""Parts that all kinds of input share: the contract, the kind of a file by its content, splits and classes by folder,
blocks of whole lines.
"""
