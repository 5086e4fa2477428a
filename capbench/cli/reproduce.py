"""`capbench reproduce`: the papers' figures and claims, run again and judged."""

from __future__ import annotations

from pathlib import Path

import click

from capbench.cli.options import run_options, typed_options
from capbench.cli.shared_options import PluginOptions, plugins_print_to_stderr
from capbench.measure.presets import RECIPE_PRESETS, RecipePreset

FROZEN = "frozen"
"""The folder of forecasts beside the pages."""
COMPUTED = ("device", "executor", "address", "gpus", "trial_timeout", "dtype", "compile_mode")
"""Options of a run that are the user's choice; the others are declared by the recipe."""


@run_options(only=COMPUTED)
@click.command("reproduce")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every recipe that comes with capbench.")
@click.option(
    "--preset",
    "size",
    type=click.Choice(RECIPE_PRESETS),
    default="standard",
    show_default=True,
    help="smoke: seconds; standard: minutes on two cores; paper: the papers' sizes.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where pages go. Default: docs/reproductions if it is there, else reproductions; reproductions-PRESET for "
    "another preset.",
)
@click.option(
    "--pages",
    "only_pages",
    is_flag=True,
    help="Train nothing: judge the data of --out by today's claims and write the pages again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print data and verdicts as JSON and nothing else on stdout.")
@click.pass_context
def reproduce_command(
    ctx: click.Context,
    name: str | None,
    every: bool,
    size: RecipePreset,
    out: Path | None,
    only_pages: bool,
    as_json: bool,
) -> None:
    """Run what a paper reports and compare: NAME is a recipe, a paper, or a .toml file; without it, list them.

    Writes the data, the figures and the page of every recipe as soon as its runs have ended. After an interruption,
    the same command continues; stored trials are not trained again.
    """
    from capbench.errors import BadSetting, RunFailed
    from capbench.report.progress import show_study
    from capbench.report.reproduction.page import (
        check_page_folder,
        default_page_folder,
        judge_again,
        write_reproduction,
    )
    from capbench.report.reproduction.text import recipes_text, reproduction_json, reproduction_text
    from capbench.store.store import Store, home
    from capbench.studies.reproduce.forecast import keep_frozen
    from capbench.studies.reproduce.recipe import all_recipes, find_recipes
    from capbench.studies.reproduce.reproduce import reproduce

    if only_pages:
        judge_again(out or default_page_folder(size), (ctx.find_object(PluginOptions) or PluginOptions()).load())
        return
    if name is None and not every:
        click.echo(recipes_text(all_recipes()))
        return
    if name is not None and every:
        raise BadSetting(f"--all is every recipe; leave {name!r} out, or --all")
    recipes = all_recipes() if name is None else find_recipes(name)
    plugins, folder = ctx.find_object(PluginOptions) or PluginOptions(), out or default_page_folder(size)
    check_page_folder(folder, recipes, size)
    found = []
    with plugins_print_to_stderr(), show_study() as progress:
        registry, store = plugins.load(), Store(home())
        for data in reproduce(
            recipes,
            size,
            registry,
            store,
            progress,
            lambda declared: typed_options(ctx, declared),
            lambda frozen: keep_frozen(folder / FROZEN / f"{frozen.recipe}.json", frozen),
        ):
            found.append(data)
            if not data.is_empty:  # do not overwrite earlier pages with a page of failures
                write_reproduction(data, folder, registry)
    click.echo(reproduction_json(found) if as_json else "\n\n".join(map(reproduction_text, found)))
    click.echo(f"pages: {folder}", err=True)
    failed = [point for data in found for point in data.failures()]
    if failed:
        raise RunFailed(f"{len(failed)} runs failed; the first: {failed[0].reason}")
