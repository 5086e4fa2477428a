"""Suites: TOML files that declare which pairs are measured, at which numbers of parameters, with which options.

Fields that are options of a run have the names and types of `MeasureOptions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from capbench.documents.result import TierUnit
from capbench.documents.toml_file import TomlModel, names_in_folder, packaged_folder, read_toml
from capbench.errors import UnknownName
from capbench.measure.options import DEFAULT_CI_WIDTH, CiWidth, MeasureOptions, Rate, Share, ShareText, Whole
from capbench.measure.presets import preset_named

FOLDER = packaged_folder("capbench.studies", "suites")
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]


class Rule(TomlModel):
    """Options for some of the cells; where two rules set the same option, the later one counts."""

    tasks: tuple[str, ...] = Field((), strict=False, description="restrict to these; empty: all")
    architectures: tuple[str, ...] = Field((), strict=False, description="restrict to these; empty: all")
    tiers: tuple[Whole, ...] = Field((), strict=False, description="restrict to these; empty: all")
    set: tuple[str, ...] = Field((), strict=False, description="fields as --set takes them: task.n_items=128")
    rates: tuple[Rate, ...] = Field((), strict=False, description="learning rates to try; none: the task's")
    steps: Whole | None = Field(None, description="most training steps of a trial")
    budget: Whole | None = Field(None, description="most trials of a search")
    skip: str = Field("", description="why these pairs are left out; the reason is published")

    @model_validator(mode="after")
    def _architectures_stay_comparable(self) -> Rule:
        shared = [text for text in self.set if not text.startswith("arch.")]
        if self.architectures and (shared or self.rates or self.steps):
            raise ValueError(
                "a rule for some architectures may only set arch.FIELD=VALUE, budget and skip, because what they are "
                "compared on must be the same for all; leave `architectures` out"
            )
        return self

    def applies_to(self, task: str, architecture: str, tier: int) -> bool:
        """Whether the rule applies to a cell of the suite."""
        conditions = ((self.tasks, task), (self.architectures, architecture), (self.tiers, tier))
        return all(not only or value in only for only, value in conditions)


class Suite(TomlModel):
    """A named, versioned set of measurements. Raise the version when results stop being comparable."""

    name: Name
    version: Whole
    about: str = Field("", description="its purpose in one line")
    preset: str = MeasureOptions.model_fields["preset"].default
    tiers: tuple[Whole, ...] = Field(
        strict=False, min_length=1, description="numbers of parameters to match, or of elements of state"
    )
    unit: TierUnit = Field(
        "parameters", description="of the tiers; with state, rules set the fields that decide it, and it is checked"
    )
    tasks: tuple[str, ...] = Field((), strict=False, description="none: every installed one")
    architectures: tuple[str, ...] = Field((), strict=False, description="none: every installed one that fits")
    seeds: Whole | None = Field(None, description="most seeds at any one load; they are 0, 1, … for every pair")
    budget: Whole | None = Field(None, description="most trials of a search")
    ci_width: CiWidth = Field(DEFAULT_CI_WIDTH, description="the interval is narrow enough within ± this share")
    settle: Annotated[Share | Literal[False] | None, ShareText] = Field(
        None, description='as --settle takes it ("5%"), or false; none: 5%, and false in the preset smoke'
    )
    rules: tuple[Rule, ...] = Field((), strict=False)

    @property
    def settle_share(self) -> float | None:
        """The share to which its capacities are settled; None where they are not."""
        return preset_named(self.preset).settle if self.settle is None else self.settle or None

    @model_validator(mode="after")
    def _tiers_are_known(self) -> Suite:
        if len(set(self.tiers)) < len(self.tiers):
            raise ValueError(f"each tier may be listed once, got {list(self.tiers)}")
        for rule in self.rules:
            unknown = [tier for tier in rule.tiers if tier not in self.tiers]
            if unknown:
                raise ValueError(f"a rule names the tier {unknown[0]}; the suite has {list(self.tiers)}")
        return self


def suite_names() -> list[str]:
    """The suites that come with capbench."""
    return names_in_folder(FOLDER)


def suite_file(name: str) -> Path:
    """The file of a suite by its name, or the path that is given."""
    return Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"


def load_suite(name: str) -> Suite:
    """A suite by its name, or by the path of its file."""
    if not name.endswith(".toml") and name not in suite_names():
        where = f"{', '.join(suite_names())}, or the path of a .toml file"
        raise UnknownName.among("suite", name, suite_names(), where)
    return read_toml(name if name.endswith(".toml") else f"{name}.toml", suite_file(name), Suite)
