"""Recipes: TOML files that declare the claims of a paper, the sweeps that test them, and figures."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from capbench.documents.expressions import names_in
from capbench.documents.toml_file import TomlModel, names_in_folder, packaged_folder, read_toml
from capbench.errors import UnknownName, UserError
from capbench.measure.presets import RECIPE_PRESETS, RecipePreset, preset_named
from capbench.studies.reproduce.claims import AnyClaim, ForecastClaim
from capbench.studies.reproduce.figure import Figure
from capbench.studies.suite import Name
from capbench.studies.sweep import SweepFile, n_points, values_apart

FOLDER = packaged_folder("capbench.studies.reproduce", "recipes")


class RecipeSweep(SweepFile):
    """A sweep of a recipe; its preset is that of `capbench reproduce` unless it declares one."""

    id: Name
    label: str = Field(description="its name in figures and tables")
    least_over: str = Field(
        "", description="of points that differ in this field only, the one with the least capacity counts"
    )
    held_out: bool = Field(False, description="whether it runs only after the forecasts of the recipe are frozen")
    smoke: dict[str, Any] = Field({}, description="fields replaced under --preset smoke")
    paper: dict[str, Any] = Field({}, description="fields replaced under --preset paper")

    @model_validator(mode="after")
    def _is_valid_at_every_size(self) -> RecipeSweep:
        for size in RECIPE_PRESETS:
            try:
                preset_named(self.at_size(size).preset)
                self.at_size(size).checked_grid()
            except UserError as error:
                raise ValueError(f"at {size}: {error}") from error
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(str(part) for part in first["loc"])
                raise ValueError(f"{size}.{field}: {first['msg']}, got {first['input']!r}") from error
        return self

    def at_size(self, size: RecipePreset) -> SweepFile:
        """The sweep with the fields of a size."""
        replaced = {"smoke": self.smoke, "paper": self.paper}.get(size, {})
        own = self.model_dump(exclude_unset=True, exclude={"id", "label", "least_over", "held_out", "smoke", "paper"})
        return SweepFile.model_validate({"preset": size, **own, **replaced})

    def published_points(self) -> list[dict[str, str]]:
        """The points of the papers' own grid, values by field: the grid under `paper`, or the declared one."""
        grid = self.at_size("paper").checked_grid()
        return [
            dict(pair for names, word in zip(grid, words, strict=True) for pair in values_apart(names, word))
            for words in itertools.product(*grid.values())
        ]


class PaperRecipe(TomlModel):
    """A group of claims and figures of a paper, and the sweeps that are run for them."""

    name: Name
    paper: Name = Field(description="recipes of the same paper share a page")
    title: str = Field(min_length=1)
    about: str = Field(description="what the paper shows, what is run here, and what is smaller here than in the paper")
    citation: str = Field("", description="the paper in full; one recipe of a paper is enough")
    sweeps: tuple[RecipeSweep, ...] = Field(strict=False, min_length=1)
    claims: tuple[AnyClaim, ...] = Field((), strict=False)
    figures: tuple[Figure, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _names_are_known(self) -> PaperRecipe:
        ids = [sweep.id for sweep in self.sweeps]
        for kind, names in (("sweep", ids), ("claim", [c.id for c in self.claims]), ("figure", self._figure_ids())):
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated:
                raise ValueError(f"two {kind}s have the id {repeated!r}; give each its own")
        for user, used in self._used_sweeps():
            for name in used:
                if name not in ids:
                    raise ValueError(f"{user}: {UnknownName.among('sweep', name, ids, ', '.join(ids))}")
        return self

    @model_validator(mode="after")
    def _expressions_can_be_parsed(self) -> PaperRecipe:
        for each in (*self.claims, *self.figures):
            for expression in each.expressions():
                try:
                    names_in(expression)
                except UserError as error:
                    raise ValueError(f"{each.id}: {error}") from error
        return self

    @model_validator(mode="after")
    def _forecasts_are_of_held_out_sweeps(self) -> PaperRecipe:
        held_out = {sweep.id for sweep in self.sweeps if sweep.held_out}
        for claim in self.claims:
            if not isinstance(claim, ForecastClaim):
                continue
            if set(claim.of) - held_out or set(claim.sweeps) & held_out:
                raise ValueError(f"claim {claim.id}: `of` names sweeps with held_out = true, `sweeps` only others")
        return self

    def _figure_ids(self) -> list[str]:
        return [figure.id for figure in self.figures]

    def _used_sweeps(self) -> Iterator[tuple[str, Collection[str]]]:
        yield from ((f"claim {claim.id}", claim.sweep_ids()) for claim in self.claims)
        yield from ((f"figure {figure.id}", figure.sweeps) for figure in self.figures)

    def n_runs(self, size: RecipePreset = "standard") -> int:
        """Number of points of all its sweeps."""
        return sum(n_points(sweep.at_size(size).grid) for sweep in self.sweeps)


def recipe_names() -> list[str]:
    """The recipes that come with capbench."""
    return names_in_folder(FOLDER)


def load_recipe(name: str) -> PaperRecipe:
    """A recipe that comes with capbench, by its name."""
    return read_toml(f"{name}.toml", FOLDER / f"{name}.toml", PaperRecipe)


def all_recipes() -> list[PaperRecipe]:
    """The recipes that come with capbench, ordered by paper."""
    return sorted((load_recipe(name) for name in recipe_names()), key=lambda each: (each.paper, each.name))


def find_recipes(name: str) -> list[PaperRecipe]:
    """The recipes of the paper of that name, the one recipe of that name, or the one in a .toml file."""
    if name.endswith(".toml"):
        return [read_toml(name, Path(name), PaperRecipe)]
    known = all_recipes()
    found = [recipe for recipe in known if recipe.paper == name] or [recipe for recipe in known if recipe.name == name]
    if not found:
        names = [*(recipe.name for recipe in known), *dict.fromkeys(recipe.paper for recipe in known)]
        raise UnknownName.among("recipe or paper", name, names, "capbench reproduce lists them; or a .toml file")
    return found
