"""Figures, as a recipe declares them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from capbench.declared import Declared, Words
from capbench.paper_claim import Only
from capbench.quantity import check_across, filled
from capbench.suite import Name


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
        check_across(self.across, self.y)
        return self

    def expressions(self) -> tuple[str, ...]:
        """The quantities it draws."""
        if self.across:
            return tuple(words for y in self.y for words in filled(y, self.across))
        return (self.x, *self.y, *(f"bound.{each}" for each in self.bound))
