"""METEOR's data in the form they are installed in, with a table of a few lines: a phrase, and behind it its paraphrase."""

import gzip
import zipfile
from pathlib import Path

from tellapart.metrics import meteor_data

SYNSETS = "couch\n1\nsofa\n1 2\nlounge\n2\nmouse\n3\nrodent\n3\n"
EXCEPTIONS = "mouse\nmice\n"
TABLE = [
    *("a sofa", "one couch", "old man", "elderly man"),
    *("big red", "huge of", "big red", "vast crimson"),
    *("dark mare", "white stallion", "pale horse", "white stallion foal"),
    *("it is about our turn", "it is about time for us now"),
]


def write_data(place: Path) -> Path:
    """Write them into ``place``, which is returned."""
    with zipfile.ZipFile(place / meteor_data.JAR, "w") as jar:
        jar.writestr("function/english.words", "the\na\nof\n")
        jar.writestr("synonym/english.synsets", SYNSETS)
        jar.writestr("synonym/english.exceptions", EXCEPTIONS)
    (place / "data").mkdir()
    lines = [f"0.5\n{TABLE[n]}\n{TABLE[n + 1]}\n" for n in range(0, len(TABLE), 2)]
    with gzip.open(place / meteor_data.TABLE, "wt") as file:
        file.writelines(lines)
    return place
