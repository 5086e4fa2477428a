"""Recipes: declared files that say what a paper claims, what is run to see whether it holds, and what is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from capbench.declared import Declared, read_declared
from capbench.errors import UnknownName, UserError
from capbench.presets import preset_named
from capbench.quantity import names_in
from capbench.suite import Name
from capbench.sweep import SweepFile

Size = Literal["smoke", "standard", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "standard", "paper")
Words = Annotated[tuple[str, ...], Field(strict=False)]
Numbers = Annotated[tuple[float, ...], Field(strict=False)]
BRACES = "{}"
Only = dict[str, JsonValue]
"""Values by field that a point must have; of a list, one of them."""
Range = Annotated[tuple[float, float], Field(strict=False)]
Span = float | Range
"""What was published: a number, or the ends of a range."""


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


class Claim(Declared):
    """Something a paper says that can turn out otherwise."""

    id: Name
    claim: str = Field(min_length=1, description="what is claimed, in a line")
    pedigree: Literal["paper", "code", "derived", "protocol"] = Field(description="of the published side")
    where: str = Field(min_length=1, description="where it is published: arXiv number, table, figure")
    not_shown: str = Field("", description="why it cannot be shown here, where it cannot")

    def sweep_ids(self) -> tuple[str, ...]:
        """The sweeps it speaks of."""
        raise NotImplementedError

    def expressions(self) -> tuple[str, ...]:
        """The quantities it is about."""
        raise NotImplementedError


class OneSweep(Claim):
    """A claim on one quantity of one sweep."""

    sweep: str
    y: str
    only: Only = Field({}, description="only points with these values")

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweep."""
        return (self.sweep,)

    def expressions(self) -> tuple[str, ...]:
        """Its quantity."""
        return (self.y,)


class TableClaim(OneSweep):
    """Published numbers, one a point of the sweep as it is declared, in its order."""

    kind: Literal["table"]
    published: Numbers = Field(min_length=1)
    within: float = Field(gt=0, description="largest difference that counts as the same")


class ValueClaim(OneSweep):
    """A published number or range; several points count by their mean."""

    kind: Literal["value"]
    published: Span
    within: float = Field(0.0, ge=0, description="how far from it still counts as the same")


class TrendClaim(OneSweep):
    """How y goes with x; points with the same x count by their mean."""

    kind: Literal["trend"]
    x: str
    across: Words = Field((), description="values of x that stand for {} in y, where x is no field of the runs")
    expected: Literal["rises", "falls", "flat", "peaks inside", "dips inside"]
    within: float | None = Field(None, gt=0, description="what counts as flat")

    @model_validator(mode="after")
    def _flat_is_measured(self) -> TrendClaim:
        if (self.expected == "flat") != (self.within is not None):
            raise ValueError('`within` belongs to expected = "flat", which needs it: how much change counts as none')
        return self

    @model_validator(mode="after")
    def _values_stand_for_braces(self) -> TrendClaim:
        _check_across(self.across, (self.y,))
        return self

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return filled(self.y, self.across) if self.across else (self.x, self.y)


class LargerClaim(OneSweep):
    """One quantity is larger than another (times a factor); several points count by their mean."""

    kind: Literal["larger"]
    than_sweep: str = Field("", description="default: the same sweep")
    than_only: Only = Field({}, description="of the other side")
    than_y: str = Field("", description="default: the same quantity")
    factor: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _sides_differ(self) -> LargerClaim:
        if (self.sweep, self.only, self.y) == self.other():
            raise ValueError("nothing is larger than itself; set than_sweep, than_only or than_y")
        return self

    def other(self) -> tuple[str, Only, str]:
        """Sweep, selection and quantity of the other side."""
        return self.than_sweep or self.sweep, self.than_only, self.than_y or self.y

    def sweep_ids(self) -> tuple[str, ...]:
        """Both sweeps."""
        return tuple(dict.fromkeys((self.sweep, self.other()[0])))

    def expressions(self) -> tuple[str, ...]:
        """Both quantities."""
        return (self.y, self.other()[2])


class FitClaim(Claim):
    """A parameter of a form fitted over the points of one sweep or several; or its R²."""

    kind: Literal["fit"]
    sweeps: Words = Field(min_length=1)
    x: str
    y: str
    per: str = Field("", description="y is its slope in this field, over the points that share x")
    only: Only = Field({}, description="only points with these values")
    form: str = Field(description="as capbench fit names it: proportional, linear, power, x log x")
    parameter: str = Field(description="of the form; or r_squared")
    published: Span
    within: float = Field(0.0, ge=0)

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweeps."""
        return self.sweeps

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return (self.x, self.y)


class RatioClaim(OneSweep):
    """What is measured over a bound, at every point: inside a published range, or never below a number."""

    kind: Literal["ratio"]
    bound: str = Field(description="id of the bound")
    published: Range | None = None
    least: float | None = None

    @model_validator(mode="after")
    def _one_side_is_given(self) -> RatioClaim:
        if (self.published is None) == (self.least is None):
            raise ValueError("give published = [low, high], or least = number")
        return self

    def expressions(self) -> tuple[str, ...]:
        """What is divided, and by what."""
        return (self.y, f"bound.{self.bound}")


AnyClaim = Annotated[
    TableClaim | ValueClaim | TrendClaim | LargerClaim | FitClaim | RatioClaim, Field(discriminator="kind")
]


class Figure(Declared):
    """A picture of one sweep or several."""

    id: Name
    title: str
    kind: Literal["lines", "heat_map", "points"] = Field(description="points: with a fitted line")
    sweeps: Words = Field(min_length=1)
    x: str
    across: Words = Field((), description="values of x that stand for {} in y, where x is no field of the runs")
    per: str = Field("", description="on points: y is its slope in this field, over the points that share x")
    y: Words = Field(min_length=1, description="a quantity, or several, a line each; on a heat map the colour")
    series: str = Field("", description="a field that splits a sweep into lines; on a heat map the other axis")
    only: Only = Field({}, description="only points with these values")
    bound: Words = Field((), description="ids of bounds drawn as dashed lines")
    published: bool = Field(False, description="whether published tables of the same sweeps and y are drawn in")
    form: str = Field("", description="the form drawn through points; default: the one that predicts best")
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False

    @field_validator("y", "bound", mode="before")
    @classmethod
    def _one_may_stand_alone(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _heat_map_has_two_axes(self) -> Figure:
        if self.kind == "heat_map" and (not self.series or len(self.y) > 1 or len(self.sweeps) > 1):
            raise ValueError("a heat map takes one sweep and one y (the colour) over x and series, the field across")
        return self

    @model_validator(mode="after")
    def _values_stand_for_braces(self) -> Figure:
        _check_across(self.across, self.y)
        return self

    def expressions(self) -> tuple[str, ...]:
        """The quantities it draws."""
        if self.across:
            return tuple(words for y in self.y for words in filled(y, self.across))
        return (self.x, *self.y, *(f"bound.{each}" for each in self.bound))


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


def filled(words: str, values: Sequence[str]) -> tuple[str, ...]:
    """An expression with each of some values in place of its braces."""
    return tuple(words.replace(BRACES, value) for value in values)


def _check_across(across: Sequence[str], y: Sequence[str]) -> None:
    """Refuses braces without values, values without braces, and values that are no numbers."""
    if any((BRACES in words) != bool(across) for words in y):
        raise ValueError("`across` lists the values that stand for {} in y; give both or neither")
    for value in across:
        try:
            float(value)
        except ValueError:
            raise ValueError(f"`across` takes numbers as words, got {value!r}") from None


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
