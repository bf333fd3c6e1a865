"""A stand-in for Java and the SPICE jar: a script that reads and writes the files of the jar's protocol."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

JAVA = '''#!{python}
import json, math, os, sys, time

here = {here!r}
words = sys.argv[1:]
with open(os.path.join(here, "calls.jsonl"), "a") as file:
    file.write(json.dumps(words) + "\\n")
asked = json.loads(open(words[3], encoding="ascii").read())
with open(os.path.join(here, "asked.jsonl"), "a") as file:
    file.write(json.dumps(asked) + "\\n")
behaviour = {behaviour!r}
if behaviour == "fails":
    sys.stderr.write("Parsing reference captions\\n")
    sys.stderr.write('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\\n\\tat edu.anu.Spice\\n')
    sys.exit(1)
if behaviour == "fails the second time" and len(open(os.path.join(here, "calls.jsonl")).readlines()) == 2:
    sys.exit(3)
if behaviour == "hangs":
    open(os.path.join(here, "pid"), "w").write(str(os.getpid()))
    time.sleep(600)
if behaviour == "writes nothing":
    sys.exit(0)


def score(caption, references):
    """Words of each length in place of objects, attributes and so on."""
    found, wanted = set(caption.split()), set(" ".join(references).split())
    scores = {{}}
    for place, kind in enumerate(["All", "Object", "Attribute", "Relation", "Color", "Cardinality", "Size"]):
        a = {{w for w in found if kind == "All" or len(w) == place}}
        b = {{w for w in wanted if kind == "All" or len(w) == place}}
        both = len(a & b)
        pr, re = (both / len(x) if x else 0.0 for x in (a, b))
        f = 2 * pr * re / (pr + re) if both else 0.0
        none = kind != "All" and not b
        scores[kind] = {{"tp": both, "f": None if none else f, "pr": None if none else pr, "re": None if none else re}}
    return scores


told = [{{"image_id": item["image_id"], "scores": score(item["test"], item["refs"])}} for item in asked]
open(words[words.index("-out") + 1], "w").write(json.dumps(told[::-1]))
'''


@dataclass(frozen=True)
class StandIn:
    """``home`` is what JAVA_HOME is set to."""

    home: Path
    jar: Path

    def calls(self) -> list[list[str]]:
        return self._lines("calls.jsonl")

    def asked(self) -> list[list[dict]]:
        return self._lines("asked.jsonl")

    def _lines(self, name: str) -> list:
        path = self.home / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stand_in(folder: Path, behaviour: str = "scores", *, version: str | None = None) -> StandIn:
    """A jar that needs one library, which it has, and a ``java`` that does not look at it."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(JAVA.format(python=sys.executable, here=str(folder), behaviour=behaviour))
    java.chmod(0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return StandIn(folder, small_jar(folder / "spice", ["lib/helper.jar"]))


def small_jar(folder: Path, needed: list[str], *, missing: int = 0) -> Path:
    """A jar whose manifest names what it needs; the last ``missing`` of these are not there."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    joined = "Class-Path: " + " ".join(needed)
    pieces = [joined[:70], *(joined[start : start + 69] for start in range(70, len(joined), 69))]
    with zipfile.ZipFile(folder / "spice-1.0.jar", "w") as file:
        file.writestr(
            "META-INF/MANIFEST.MF", "Manifest-Version: 1.0\r\n" + "\r\n ".join(pieces) + "\r\nMain-Class: x\r\n"
        )
    for name in needed[: len(needed) - missing]:
        (folder / name).write_bytes(b"")
    return folder / "spice-1.0.jar"
