"""Tasks do not import their bounds, so that a change to a bound does not change the code hash of a task."""

from __future__ import annotations

import subprocess
import sys


def test_no_task_imports_its_bounds():
    program = (
        "import sys, capbench_tasks.triples, capbench_tasks.bigrams, capbench_tasks.sequences, capbench_tasks.rgr\n"
        "import capbench_tasks.dichotomies, capbench_tasks.associations, capbench_tasks.recall\n"
        "print([name for name in sys.modules if name.endswith('_bounds')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
