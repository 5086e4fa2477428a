"""Training protocols by name: how batches, learning rates and steps are chosen, by capbench and by the papers.

Each is a TOML file in `protocol_files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter

from capbench.documents.toml_file import TomlModel, names_in_folder, packaged_folder, read_toml
from capbench.engine.trials import Sampling
from capbench.errors import UnknownName

FOLDER = packaged_folder("capbench.measure", "protocol_files")
SolverFields = Mapping[str, str | float]


def _as_sampling(value: object) -> Sampling:
    """The table of a file as a `Sampling`, checked field by field."""
    return TypeAdapter(Sampling).validate_python(value)


class TrainingProtocol(TomlModel):
    """A way of training; what it leaves out is capbench's default."""

    name: str
    meaning: str = Field(description="one line for the catalogue, with its source")
    learning_rates: Annotated[tuple[float, ...], Field(strict=False)] = ()
    steps: int | None = Field(None, ge=1)
    seeds: int | None = Field(None, ge=1, description="repetitions at a given load")
    sampling: Annotated[Sampling | None, BeforeValidator(_as_sampling)] = Field(
        None, description="how batches are drawn and scored"
    )
    solver: SolverFields = Field({}, description="fields of the solver")
    solver_of: Mapping[str, SolverFields] = Field({}, description="other values of such fields, by architecture")

    def solver_fields(self, architecture: str) -> dict[str, str | float]:
        """The solver's fields for an architecture of that name."""
        return {**self.solver, **self.solver_of.get(architecture, {})}


PROTOCOLS = {
    name: read_toml(f"{name}.toml", FOLDER / f"{name}.toml", TrainingProtocol) for name in names_in_folder(FOLDER)
}


def protocol_named(name: str) -> TrainingProtocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise UnknownName.among("protocol", name, PROTOCOLS, ", ".join(PROTOCOLS))
    return PROTOCOLS[name]
