"""Stands in for the C++ compiler in a test session: equal sources are compiled once, for all its processes.

It is called with the session's folder, the compiler, and what capbench gives the compiler.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main(folder: Path, compiler: str, words: Sequence[str]) -> int:
    """Copies the library that was compiled from an equal source, or compiles it; torch's own calls are passed on."""
    if not any(word.endswith("program.cpp") for word in words):
        return subprocess.run([compiler, *words], check=False).returncode
    output = words.index("-o") + 1
    kept = folder / f"{_key(words, output)}.so"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever needs the same library waits for it
        if not kept.exists():
            code = subprocess.run([compiler, *words], check=False).returncode
            if code:
                return code
            shutil.copyfile(words[output], kept)
        else:
            shutil.copyfile(kept, words[output])
    return 0


def _key(words: Sequence[str], output: int) -> str:
    """What decides a library: the options and the sources."""
    sources = [number for number, word in enumerate(words) if word.endswith(".cpp")]
    options = [word for number, word in enumerate(words) if number not in (output, *sources)]
    parts = [" ".join(options).encode(), *(Path(words[number]).read_bytes() for number in sources)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
