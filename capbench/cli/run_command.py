"""`capbench run`: the capacity of one architecture on one task."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("run")
@click.option("--task", required=True, metavar="NAME", help="What is to be held (capbench list).")
@click.option("--arch", required=True, metavar="NAME", help="What is to hold it (capbench list).")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="WHAT.FIELD=VALUE",
    help="Override a field: task.n_items=32, arch.n_heads=8, solver.decay=linear; VALUE may be JSON, or @FILE of JSON.",
)
@click.option(
    "--preset",
    default="standard",
    show_default=True,
    metavar="NAME",
    help="smoke (seconds), standard (about a minute) or paper (the papers' sizes).",
)
@click.option("--at", type=click.IntRange(min=1), metavar="LOAD", help="Only this load: how often is it held?")
@click.option(
    "--minimize",
    metavar="PARAM",
    help="Find the least value of an architecture's field that holds the load --at (a typical one by default).",
)
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Most seeds at any one load.")
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
    help="Learning rates to try; repeat for several. Default: the task's.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Most training steps of a trial. Default: the task's."
)
@click.option("--solver", default="adam", show_default=True, metavar="NAME", help="How weights are found.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")
@click.option("--json", "as_json", is_flag=True, help="Print the result document and nothing else on stdout.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw the success curve: .png, .svg or .html.",
)
@click.pass_obj
def run_command(
    strict_plugins: bool,
    task: str,
    arch: str,
    sets: tuple[str, ...],
    preset: str,
    at: int | None,
    minimize: str | None,
    seeds: int | None,
    ci_width: float,
    rates: tuple[float, ...],
    steps: int | None,
    solver: str,
    device: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure how many facts an architecture holds."""
    from capbench.presets import preset_named
    from capbench.registry import load_registry
    from capbench.request import Request
    from capbench.settings import configure, parse_sets

    overrides, chosen = parse_sets(sets), preset_named(preset)
    registry = load_registry(strict=strict_plugins)
    request = Request(
        task=configure(registry.task(task), preset, overrides["task"]),
        architecture=configure(registry.architecture(arch), preset, overrides["arch"]),
        solver=configure(registry.solver(solver), preset, overrides["solver"]),
        preset=chosen,
        at=at,
        minimize=minimize,
        seeds=seeds,
        learning_rates=tuple(sorted(set(rates))),
        steps=steps,
        ci_width=ci_width,
        device=device,
    )
    from capbench.cli.progress import show_progress
    from capbench.report.result_text import result_text
    from capbench.report.text import as_json_text
    from capbench.runner import execute
    from capbench.store import Store, home

    if plot:
        from capbench.report.plot import check_plot_path, save_plot

        check_plot_path(plot)
    request.check()
    store = Store(home())
    with show_progress() as progress:
        result = execute(request, registry, store, progress)
    fact = request.task.plugin.fact
    click.echo(as_json_text(result) if as_json else result_text(result, fact))
    if plot:
        save_plot(result, fact, plot)
        click.echo(f"plot: {plot}", err=True)
