"""The compiler that tests share: equal programs are compiled once in a session."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def test_an_equal_source_is_compiled_once_and_torchs_own_calls_are_passed_on(tmp_path: Path) -> None:
    if "CXX" not in os.environ:
        pytest.skip("no C++ compiler here")
    calls = tmp_path / "calls"
    real = tmp_path / "compiler"
    real.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nfor last; do :; done\ncp "$last" "$2" || exit 3\n')
    real.chmod(0o755)
    wrapper = Path(os.environ["CXX"]).read_text()
    words = wrapper.splitlines()[1].removeprefix("exec ").split()[:3]  # python -IS compiler_cache.py
    for folder, content in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / folder).mkdir()
        source, library = tmp_path / folder / "program.cpp", tmp_path / folder / "program.so"
        source.write_text(content)
        subprocess.run([*words, str(tmp_path), str(real), "-o", str(library), str(source)], check=True)
        assert library.read_text() == content
    assert len(calls.read_text().splitlines()) == 2
    for _ in range(2):
        other = ["-o", str(tmp_path / "main.so"), str(tmp_path / "main.cpp")]
        assert subprocess.run([*words, str(tmp_path), str(real), *other], stderr=-3, check=False).returncode == 3
    assert len(calls.read_text().splitlines()) == 4
