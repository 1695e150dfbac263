"""Shows text of files on a terminal."""

from rich.markup import escape


def plain(text: str) -> str:
    """Text for a rich console without markup, and without control characters, which a terminal would carry out."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))
