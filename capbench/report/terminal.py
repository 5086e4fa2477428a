"""Text on a terminal: its width, and a result with the answer standing out; plain text where stdout is piped."""

from __future__ import annotations

import shutil
import sys

from rich.console import Console
from rich.text import Text


def terminal_width() -> int | None:
    """The width of the terminal; None where stdout is not one."""
    console = Console()
    return console.width if console.is_terminal else None


def text_width() -> int:
    """The width of the terminal, or 80 (COLUMNS) where stdout is not one: for texts that only people read."""
    return shutil.get_terminal_size().columns


def print_result(text: str) -> None:
    """Prints the text of a result; on a terminal the heading and the answer are bold, and explanations are dim."""
    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(styled(text))
    else:
        sys.stdout.write(f"{text}\n")


def styled(text: str) -> Text:
    """The first line bold, the first line of the answer bold and in colour, comments of commands dim."""
    shown, is_answered = Text(), False
    for number, line in enumerate(text.split("\n")):
        is_answer = not is_answered and line.startswith(("capacity ", "least budget ", "success rate ", "facts held "))
        command, mark, comment = ("", line, "") if line.startswith("  # ") else line.partition("   # ")
        shown.append(command, "bold green" if is_answer else "bold" if number == 0 else "")
        shown.append(mark + comment, "dim")
        shown.append("\n")
        is_answered |= is_answer
    shown.rstrip()
    return shown
