"""`capbench run`: the capacity of one architecture on one task."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from capbench.cli.completion import archs, solvers, tasks
from capbench.cli.plugin_options import PluginOptions
from capbench.cli.where_options import where_options

SET_HELP = (
    "Override a field: task.n_items=32, arch.n_heads=8, solver.decay=linear; VALUE may be JSON, or @FILE of JSON."
)


@click.command("run")
@click.option("--task", required=True, metavar="NAME", shell_complete=tasks, help="What is to be held (capbench list).")
@click.option("--arch", required=True, metavar="NAME", shell_complete=archs, help="What is to hold it (capbench list).")
@click.option("--set", "sets", multiple=True, metavar="WHAT.FIELD=VALUE", help=SET_HELP)
@click.option("--params", metavar="COUNT", help="Choose the free width so that there are this many parameters: 10k.")
@click.option("--match", metavar="ARCH", help="The same, with the count of another architecture at its defaults.")
@click.option("--preset", default="standard", show_default=True, metavar="NAME", help="smoke, quick, standard, paper.")
@click.option("--at", type=click.IntRange(min=1), metavar="LOAD", help="Only this load: how often is it held?")
@click.option(
    "--minimize", metavar="PARAM", help="The least value of an architecture's field that holds the load --at."
)
@click.option("--overload", is_flag=True, help="Facts held when asked for more than fit: --at LOAD, or all there are.")
@click.option(
    "--analyse",
    is_flag=True,
    help="Analyse each model at its end (triples: tensor ranks; mha on sequences: saturation).",
)
@click.option("--protocol", default="capbench", show_default=True, metavar="NAME", help="Or dana2025, mahdavi2024.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Most seeds at any one load.")
@click.option(
    "--budget", type=click.IntRange(min=1), metavar="N", help="Most trials of a search. Default: the preset's."
)
@click.option(
    "--ci-width",
    type=click.FloatRange(min=0.001, max=10),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Stop when the 95 % interval is within ± this share.",
)
@click.option(
    "--lr",
    "rates",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    metavar="RATE",
    help="A learning rate to try; repeat for several. Default: the task's.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Most training steps. Default: the task's.")
@click.option(
    "--solver", default="adam", show_default=True, metavar="NAME", shell_complete=solvers, help="How weights are found."
)
@where_options
@click.option(
    "--trial-timeout",
    type=click.FloatRange(min=0, max=1e6),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up a trial that shows no progress for so long; 0: never.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "tf32", "bfloat16"]),
    help="Precision; the last two of matrix products alone. Default: the solver's.",
)
@click.option(
    "--compile",
    "compile_mode",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Compile the training step: where it pays, always, or never.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result document and nothing else on stdout.")
@click.option("--profile", is_flag=True, help="Say on stderr where the time went.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the curve: .png, .svg or .html.")
@click.pass_obj
def run_command(
    plugins: PluginOptions,
    task: str,
    arch: str,
    sets: tuple[str, ...],
    params: str | None,
    match: str | None,
    preset: str,
    at: int | None,
    minimize: str | None,
    overload: bool,
    analyse: bool,
    protocol: str,
    seeds: int | None,
    budget: int | None,
    ci_width: float,
    rates: tuple[float, ...],
    steps: int | None,
    solver: str,
    device: str,
    executor: Literal["local", "ray"],
    address: str,
    gpus: float,
    trial_timeout: float,
    dtype: Literal["float32", "float64", "tf32", "bfloat16"] | None,
    compile_mode: Literal["auto", "on", "off"],
    as_json: bool,
    profile: bool,
    plot: Path | None,
) -> None:
    """Measure how many facts an architecture holds."""
    from capbench.cli.output import plugins_print_to_stderr
    from capbench.cli.progress import show_progress
    from capbench.options import RunOptions, build_request, matched_text
    from capbench.report.result_text import result_text
    from capbench.report.text import as_json_text
    from capbench.runner import execute
    from capbench.store import Store, home

    options = RunOptions(
        task=task,
        arch=arch,
        sets=sets,
        params=params,
        match=match,
        preset=preset,
        at=at,
        minimize=minimize,
        overload=overload,
        analyse=analyse,
        protocol=protocol,
        seeds=seeds,
        budget=budget,
        ci_width=ci_width,
        rates=rates,
        steps=steps,
        solver=solver,
        device=device,
        executor=executor,
        address=address,
        gpus=gpus,
        compile_mode=compile_mode,
        trial_timeout=trial_timeout,
        dtype=dtype,
    )
    if plot:
        from capbench.report.plot import check_plot_path, save_plot

        check_plot_path(plot)
    with plugins_print_to_stderr(), show_progress() as progress:
        registry = plugins.load()
        request = build_request(options, registry)
        request.check()
        if params or match:
            click.echo(matched_text(request), err=True)
        result = execute(request, registry, Store(home()), progress)
    fact = request.task.plugin.fact
    click.echo(as_json_text(result) if as_json else result_text(result, fact))
    if profile:
        from capbench.report.profile import profile_text

        click.echo(profile_text(result.timing), err=True)
    if plot:
        save_plot(result, fact, plot)
        click.echo(f"plot: {plot}", err=True)
