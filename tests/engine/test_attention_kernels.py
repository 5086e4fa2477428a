"""torch's own attention in a user's module: batched and compiled, without a warning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PLUGIN = """
from typing import ClassVar
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from capbench import Architecture, Mixer, hookimpl

class Attend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).unsqueeze(1) for part in (self.q, self.k, self.v))
        return scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)

class FusedAttention(Mixer):
    name: ClassVar[str] = "fused_attention"

    def mixer(self, d_model, length):
        return Attend(d_model)

@hookimpl
def capbench_architectures() -> list[type[Architecture]]:
    return [FusedAttention]
"""


@pytest.mark.parametrize(("task", "compiled"), [("recall", "off"), ("triples", "off"), ("triples", "on")])
def test_a_module_with_torchs_attention_gives_no_warning(
    task: str, compiled: str, capbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fused_attention.py").write_text(PLUGIN)
    monkeypatch.delitem(sys.modules, "fused_attention", raising=False)
    words = ("--preset", "smoke", "--at", "4", "--seeds", "1", "--lr", "0.01", "--steps", "25", "--compile", compiled)
    plugin = ("--plugin", str(tmp_path / "fused_attention.py"))
    done = capbench("run", *plugin, "--task", task, "--arch", "fused_attention", *words)
    assert done.code == 0, done.err
    assert "warning" not in done.err
