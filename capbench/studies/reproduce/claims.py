"""Claims of a paper as a recipe declares them: what was published, and which runs are compared with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from capbench.documents.expressions import check_braces, expand_braces
from capbench.documents.toml_file import StringTuple, TomlModel
from capbench.studies.suite import Name

Numbers = Annotated[tuple[float, ...], Field(strict=False)]
PointFilter = dict[str, JsonValue]
"""Values by field that a point must have; a list allows any of its values."""
Range = Annotated[tuple[float, float], Field(strict=False)]
Span = float | Range
"""What was published: a number, or the ends of a range."""


Group = Literal["published", "notes", "own", "check"]
"""Claims that are counted together: stated by the authors, drawn from their text or tables, asked by capbench, or true
by construction and not counted."""
GROUP_OF: dict[str, Group] = {"paper": "published", "code": "published", "derived": "notes", "protocol": "own"}


class Claim(TomlModel):
    """A statement of a paper that measurements can contradict."""

    id: Name
    claim: str = Field(min_length=1, description="what is claimed, in one line")
    pedigree: Literal["paper", "code", "derived", "protocol"] = Field(description="of the published side")
    where: str = Field(min_length=1, description="where it is published: arXiv number, table, figure")
    group: Group | None = Field(None, description="how it is counted; default: by its pedigree")
    not_shown: str = Field("", description="why it cannot be shown here, if it cannot")
    headline: str = Field("", description="a short statement of it for the index, if it is among those listed there")

    @property
    def counted_as(self) -> Group:
        """The group in which it is counted."""
        return self.group or GROUP_OF[self.pedigree]

    def sweep_ids(self) -> tuple[str, ...]:
        """The ids of its sweeps."""
        raise NotImplementedError

    def expressions(self) -> tuple[str, ...]:
        """The expressions that it evaluates."""
        raise NotImplementedError


class OneSweep(Claim):
    """A claim about one quantity of one sweep."""

    sweep: str
    y: str
    only: PointFilter = Field({}, description="only points with these values")

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweep."""
        return (self.sweep,)

    def expressions(self) -> tuple[str, ...]:
        """Its quantity."""
        return (self.y,)


class TableClaim(OneSweep):
    """Published numbers, one per point of the paper's grid, in its order; all of them, run here or not."""

    kind: Literal["table"]
    published: Numbers = Field(min_length=1)
    within: float = Field(gt=0, description="largest difference that counts as agreement")


class ValueClaim(OneSweep):
    """A published number or range; the mean of several points is compared with it."""

    kind: Literal["value"]
    published: Span
    within: float = Field(0.0, ge=0, description="largest distance from it that counts as agreement")
    over_seeds: Literal["mean", "least", "largest"] = Field(
        "mean", description="least or largest: the value of one seed, for papers where a success of any seed counts"
    )


class TrendClaim(OneSweep):
    """How y changes with x; points with the same x are averaged."""

    kind: Literal["trend"]
    x: str
    across: StringTuple = Field((), description="values of x that replace {} in y, if x is not a field of the runs")
    expected: Literal["rises", "falls", "flat", "peaks inside", "dips inside"]
    ceiling: float | None = Field(None, description="from here on values cannot differ, and are no evidence")
    within: float | None = Field(None, gt=0, description="largest change that counts as flat")

    @model_validator(mode="after")
    def _flat_has_tolerance(self) -> TrendClaim:
        if (self.expected == "flat") != (self.within is not None):
            raise ValueError('`within` belongs to expected = "flat", which needs it: how much change counts as none')
        return self

    @model_validator(mode="after")
    def _braces_have_values(self) -> TrendClaim:
        check_braces(self.across, (self.y,))
        return self

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return expand_braces(self.y, self.across) if self.across else (self.x, self.y)


class LargerClaim(OneSweep):
    """One quantity is larger than another (times a factor); the means of several points are compared."""

    kind: Literal["larger"]
    than_sweep: str = Field("", description="default: the same sweep")
    than_only: PointFilter | None = Field(None, description="default: the same points")
    than_y: str = Field("", description="default: the same quantity")
    factor: float = Field(1.0, gt=0)
    ceiling: float | None = Field(None, description="from here on values cannot differ, and are no evidence")

    @model_validator(mode="after")
    def _sides_differ(self) -> LargerClaim:
        if (self.sweep, self.only, self.y) == self.other():
            raise ValueError("nothing is larger than itself; set than_sweep, than_only or than_y")
        return self

    def other(self) -> tuple[str, PointFilter, str]:
        """Sweep, filter and quantity of the other side."""
        only = self.only if self.than_only is None else self.than_only
        return self.than_sweep or self.sweep, only, self.than_y or self.y

    def sweep_ids(self) -> tuple[str, ...]:
        """Both sweeps."""
        return tuple(dict.fromkeys((self.sweep, self.other()[0])))

    def expressions(self) -> tuple[str, ...]:
        """Both quantities."""
        return (self.y, self.other()[2])


class FitClaim(Claim):
    """A parameter of a form fitted to the points of one or more sweeps, or its R²."""

    kind: Literal["fit"]
    sweeps: StringTuple = Field(min_length=1)
    x: str
    y: str
    per: str = Field("", description="y is its slope in this field, over the points that share x")
    only: PointFilter = Field({}, description="only points with these values")
    form: str = Field(description="as capbench fit names it: proportional, linear, power, x log x")
    parameter: str = Field(description="of the form; or r_squared, held_out_error")
    published: Span
    within: float = Field(0.0, ge=0)

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweeps."""
        return self.sweeps

    def expressions(self) -> tuple[str, ...]:
        """Both axes."""
        return (self.x, self.y)


class RatioClaim(OneSweep):
    """A measured quantity divided by a bound, at every point: in a published range, or never below a number."""

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
        """The quantity and the bound."""
        return (self.y, f"bound.{self.bound}")


class ForecastClaim(Claim):
    """y = c·n_parameters^p fitted to some sweeps predicts others, whose runs start after the prediction is frozen."""

    kind: Literal["forecast"]
    sweeps: StringTuple = Field(min_length=1, description="the sweeps that the law is fitted to")
    of: StringTuple = Field(min_length=1, description="the sweeps that it predicts; they are held out")
    y: str

    def sweep_ids(self) -> tuple[str, ...]:
        """Its sweeps: those fitted, then those predicted."""
        return (*self.sweeps, *self.of)

    def expressions(self) -> tuple[str, ...]:
        """The quantity."""
        return (self.y,)


AnyClaim = Annotated[
    TableClaim | ValueClaim | TrendClaim | LargerClaim | FitClaim | RatioClaim | ForecastClaim,
    Field(discriminator="kind"),
]
