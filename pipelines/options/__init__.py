"""Every option of every command, declared once: in, what it is; out, the command line, the keywords of Python, their
types, the reference page and the names that messages use. Only the standard library is imported here.
"""
