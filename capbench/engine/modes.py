"""Names of precisions and of ways to run a step, as the user types them. No torch here: the command line imports it."""

from __future__ import annotations

from typing import Literal

CompileMode = Literal["auto", "on", "off"]
Dtype = Literal["float32", "float64", "tf32", "bfloat16"]
TRIAL_TIMEOUT = 600.0
"""Seconds without progress after which a trial group counts as hanging."""
