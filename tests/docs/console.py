"""Pages with commands and their output: `make tutorial` runs the commands and writes what they print into the pages.

A block marked `console` has commands after `$ `, each followed by its output. Blocks with a title are files, written
before the commands that follow. Pictures named figures/NAME that a command has written are copied beside the page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("tutorial.md", "gallery.md")
SAMPLED = (ROOT / "README.md", DOCS / "reading-a-result.md")
"""Pages that show the first output of the tutorial."""
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(figures/([\w.-]+)\)")
SAMPLE = re.compile(r"(<!-- the first output of docs/tutorial.md -->\n\n```text\n).*?(^```$)", re.DOTALL | re.MULTILINE)

Runner = Callable[[list[str]], str]
"""Runs the words of a command in the present folder and returns what it prints on stdout."""


def commands(text: str) -> list[str]:
    """The commands of a page in order."""
    blocks = (match["body"] for match in BLOCK.finditer(text) if match["language"] == "console")
    return [line.removeprefix("$ ") for body in blocks for line in body.splitlines() if line.startswith("$ ")]


def written(text: str, folder: Path, run: Runner) -> str:
    """The page with the output of its commands, which are run in a folder together with the files that it shows."""

    def block(match: re.Match[str]) -> str:
        if match["title"]:
            (folder / match["title"]).write_text(match["body"], encoding="utf-8")
        if match["language"] != "console":
            return match[0]
        own = [line for line in match["body"].splitlines() if line.startswith("$ ")]
        shown = [f"{line}\n{run(shlex.split(line.removeprefix('$ '))).rstrip()}".rstrip() for line in own]
        return "```console\n" + "\n".join(shown) + "\n```"

    return BLOCK.sub(block, text)


def first_output(text: str) -> str:
    """What the first command of a page prints."""
    body = next(match["body"] for match in BLOCK.finditer(text) if match["language"] == "console")
    _, _, output = body.partition("\n")
    return output


def with_output(page: str, output: str) -> str:
    """A page with the first output of the tutorial in its place."""
    return SAMPLE.sub(lambda match: f"{match[1]}{output}{match[2]}", page)


def run_program(words: list[str], folder: Path, home: Path) -> str:
    """Runs a command of this environment in a folder, with a store of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CAPBENCH_HOME": str(home), "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def write_pages(names: tuple[str, ...]) -> None:
    """Runs the pages from an empty folder with an empty store, and writes pages, pictures and samples."""
    with tempfile.TemporaryDirectory() as made:
        folder, home = Path(made) / "study", Path(made) / "home"
        folder.mkdir()
        for name in names:
            page = DOCS / name
            text = written(page.read_text(encoding="utf-8"), folder, lambda words: run_program(words, folder, home))
            page.write_text(text, encoding="utf-8")
            for picture in PICTURE.findall(text):
                if (folder / picture).exists():
                    (DOCS / "figures").mkdir(exist_ok=True)
                    shutil.copy(folder / picture, DOCS / "figures" / picture)
    output = first_output((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    for page in SAMPLED:
        page.write_text(with_output(page.read_text(encoding="utf-8"), output), encoding="utf-8")


if __name__ == "__main__":
    write_pages(tuple(sys.argv[1:]) or PAGES)
