"""Text from a ledger, made safe to show: names and sources are data, whatever they hold.

Numbers have their nouns with them."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls, escape included
    "\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or turning text around
    "\ud800-\udfff]"  # halves of surrogate pairs, which no encoding can write
)


def printable(text: str) -> str:
    r"""Control, direction and invisible characters as ``\x1b``; tabs and line ends stay.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    r"""Like ``printable``, with tabs and line ends escaped too: for names in a table.

    >>> one_line("a\nb")
    'a\\nb'
    """
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def sentence(text: str) -> str:
    """A note as a sentence of its own; what begins with a name of code keeps its small letter.

    >>> sentence("no step was found"), sentence("torch.compile compiled 1 frame.")
    ('No step was found.', 'torch.compile compiled 1 frame.')
    """
    first = text.partition(" ")[0]
    begun = text if re.search(r"[._()#:]", first.rstrip(".:")) else text[:1].upper() + text[1:]
    return ended(begun)


def ended(text: str) -> str:
    """A text with one mark at its end: what others' errors say may bring its own.

    >>> ended("no such file"), ended("No such file."), ended("it broke!"), ended("it says:")
    ('no such file.', 'No such file.', 'it broke!', 'it says.')
    """
    if text.endswith("..."):  # which was cut off
        return text
    said = text.rstrip(" .:,;\n")
    return said if said.endswith(("?", "!")) else f"{said}."


def shorten(text: str, limit: int) -> str:
    """At most about ``limit`` characters; what is left out is counted, where saying so is shorter.

    >>> shorten("abcd" * 10, 4), shorten("abcdefgh", 4)
    ('abcd... (36 more characters)', 'abcdefgh')
    """
    return text if len(text) <= limit + 30 else f"{text[:limit]}... ({len(text) - limit:,} more characters)"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "launch"), counted(1200, "graph"), counted(3, "launch")
    ('1 launch', '1,200 graphs', '3 launches')
    """
    plural = "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
