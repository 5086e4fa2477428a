"""Recipes: declared files that say what a paper claims, what is run to see whether it holds, and what is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from capbench.declared import Declared, read_declared
from capbench.errors import UnknownName, UserError
from capbench.figure import Figure
from capbench.paper_claim import AnyClaim
from capbench.presets import preset_named
from capbench.quantity import names_in
from capbench.suite import Name
from capbench.sweep import SweepFile

Size = Literal["smoke", "standard", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "standard", "paper")


class RecipeSweep(SweepFile):
    """A sweep of a recipe; the run's preset is the command's unless one is declared."""

    id: Name
    label: str = Field(description="how figures and tables name it")
    least_over: str = Field(
        "", description="of points that differ in this field alone only the one with the least capacity counts"
    )
    smoke: dict[str, Any] = Field({}, description="fields replaced under --preset smoke")
    paper: dict[str, Any] = Field({}, description="fields replaced under --preset paper")

    @model_validator(mode="after")
    def _every_size_can_be(self) -> RecipeSweep:
        for size in SIZES:
            try:
                preset_named(self.at_size(size).preset)
                self.at_size(size).words()
            except UserError as error:
                raise ValueError(f"at {size}: {error}") from error
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(str(part) for part in first["loc"])
                raise ValueError(f"{size}.{field}: {first['msg']}, got {first['input']!r}") from error
        return self

    def at_size(self, size: Size) -> SweepFile:
        """The sweep as it is run at a size."""
        changed = {"smoke": self.smoke, "paper": self.paper}.get(size, {})
        own = self.model_dump(exclude_unset=True, exclude={"id", "label", "least_over", "smoke", "paper"})
        return SweepFile.model_validate({"preset": size, **own, **changed})


class Recipe(Declared):
    """A figure or a group of claims of a paper, and what is run for it."""

    name: Name
    paper: Name = Field(description="joins recipes to one page")
    title: str = Field(min_length=1)
    about: str = Field(description="what the paper shows, what is run here, and what is smaller here than there")
    citation: str = Field("", description="the paper in full; one recipe of a paper is enough")
    sweeps: tuple[RecipeSweep, ...] = Field(strict=False, min_length=1)
    claims: tuple[AnyClaim, ...] = Field((), strict=False)
    figures: tuple[Figure, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _names_agree(self) -> Recipe:
        ids = [sweep.id for sweep in self.sweeps]
        for kind, names in (("sweep", ids), ("claim", [c.id for c in self.claims]), ("figure", self._figure_ids())):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice:
                raise ValueError(f"two {kind}s have the id {twice!r}; give each its own")
        for where, wanted in self._mentions():
            for name in wanted:
                if name not in ids:
                    raise ValueError(f"{where}: {UnknownName.among('sweep', name, ids, ', '.join(ids))}")
        return self

    @model_validator(mode="after")
    def _quantities_can_be_read(self) -> Recipe:
        for each in (*self.claims, *self.figures):
            for words in each.expressions():
                try:
                    names_in(words)
                except UserError as error:
                    raise ValueError(f"{each.id}: {error}") from error
        return self

    def _figure_ids(self) -> list[str]:
        return [figure.id for figure in self.figures]

    def _mentions(self) -> Iterator[tuple[str, Collection[str]]]:
        yield from ((f"claim {claim.id}", claim.sweep_ids()) for claim in self.claims)
        yield from ((f"figure {figure.id}", figure.sweeps) for figure in self.figures)

    def n_runs(self, size: Size = "standard") -> int:
        """Points of all its sweeps."""
        return sum(_n_points(sweep.at_size(size).grid) for sweep in self.sweeps)


def _n_points(grid: Mapping[str, tuple[JsonValue, ...]]) -> int:
    n_points = 1
    for values in grid.values():
        n_points *= len(values)
    return n_points


def recipe_names() -> list[str]:
    """The recipes that come with capbench."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """A recipe of capbench by its name."""
    return read_declared(f"{name}.toml", _folder() / f"{name}.toml", Recipe)


def all_recipes() -> list[Recipe]:
    """The recipes that come with capbench, those of a paper together."""
    return sorted((load_recipe(name) for name in recipe_names()), key=lambda each: (each.paper, each.name))


def find_recipes(name: str) -> list[Recipe]:
    """The recipe of that name, those of the paper of that name, or the one in a .toml file."""
    if name.endswith(".toml"):
        return [read_declared(name, Path(name), Recipe)]
    if name in recipe_names():
        return [load_recipe(name)]
    known = all_recipes()
    of_paper = [recipe for recipe in known if recipe.paper == name]
    if not of_paper:
        names = [*(recipe.name for recipe in known), *dict.fromkeys(recipe.paper for recipe in known)]
        raise UnknownName.among("recipe or paper", name, names, "capbench reproduce lists them; or a .toml file")
    return of_paper


def _folder() -> Path:
    return Path(str(files("capbench") / "recipes"))
