"""Text of others on a terminal; the module imports nothing slow."""


def printable(text: str) -> str:
    """The text as any terminal can show it: control characters other than line ends, and surrogates, are escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in whole)
