"""The pages of reproductions: one a paper and a summary of all, each a pure function of the data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tabulate import tabulate

from capbench.errors import UserError
from capbench.measured import measured
from capbench.recipe import RecipeSweep
from capbench.records import write_text
from capbench.report.reproduction_plot import figure_svg
from capbench.report.text import number, plain
from capbench.reproduction import PointRecord, Reproduction, SweepRecord, data_text, read_reproduction
from capbench.verdict import Outcome, Verdict, shown, verdicts

DATA = "data"
PUBLISHED = Path("docs/reproductions")
LEGEND = """\
*agrees*: what was measured lies within the tolerance that the claim states, or its interval holds what was published.
*agrees in direction*: the point estimates go the published way, but not as far, or not beyond what seeds vary.
*does not*: they do not. *not shown here*: there is nothing to tell by; the reason stands in its place. Intervals are
95 %: Student's over seeds where a load was given, the search's own where a capacity was looked for, a bootstrap where a
law was fitted.
The published side carries its pedigree: stated in the [paper], read in the authors' [code], [derived] for capbench from
either, or a choice of [protocol].
"""


def default_folder() -> Path:
    """Where pages go when the user does not say: beside the documents, or where we are."""
    return PUBLISHED if PUBLISHED.is_dir() else Path("reproductions")


def write_reproduction(data: Reproduction, folder: Path) -> None:
    """Writes the data of a recipe, and every page and figure that follows from what the folder holds."""
    write_text(folder / DATA / f"{data.recipe.name}.json", data_text(data))
    write_pages(folder)


def write_pages(folder: Path) -> None:
    """Writes all pages and figures anew from the data files."""
    for name, text in rendered(folder).items():
        write_text(folder / name, text)


def rendered(folder: Path) -> dict[str, str]:
    """Every page and figure by file name, from the data files of a folder."""
    found = [read_reproduction(path) for path in sorted((folder / DATA).glob("*.json"))]
    if not found:
        return {}
    pages = {f"{paper}.md": paper_page(of_paper) for paper, of_paper in _by_paper(found).items()}
    figures = {
        _figure_file(data, figure.id): figure_svg(figure, data) for data in found for figure in data.recipe.figures
    }
    return {"index.md": index_page(found), **pages, **figures}


def index_page(found: Sequence[Reproduction]) -> str:
    """The summary: every claim of every recipe, with its verdict."""
    counted = dict.fromkeys(Outcome, 0)
    rows = []
    for data in found:
        for verdict in verdicts(data):
            counted[verdict.outcome] += 1
            rows.append(
                (f"[{data.recipe.paper}]({data.recipe.paper}.md#{data.recipe.name})", *_cells(verdict), _command(data))
            )
    counts = ", ".join(f"{n} {outcome}" for outcome, n in counted.items() if n)
    seconds = sum(data.wall_seconds for data in found)
    parts = [
        "# Reproductions",
        "What the papers report, and what capbench finds. Written by `capbench reproduce --all` from the files in "
        "`data/`; not edited by hand.",
        f"{len(rows)} claims of {len(found)} recipes: {counts}. Added up, the runs took {seconds / 60:.0f} minutes, "
        "less by the clock where some went side by side.",
        LEGEND.strip(),
        _table(rows, ("paper", "claim", "published", "ours", "verdict", "command")),
    ]
    return "\n\n".join(parts) + "\n"


def paper_page(found: Sequence[Reproduction]) -> str:
    """The recipes of one paper."""
    citation = next((data.recipe.citation for data in found if data.recipe.citation), "")
    parts = [
        f"# {_plain(found[0].recipe.paper)}",
        _plain(citation),
        "Written by `capbench reproduce`; not edited by hand. [What the verdicts mean](index.md).",
        *(_section(data) for data in found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(data: Reproduction) -> str:
    judged = verdicts(data)
    recipe = data.recipe
    parts = [
        f'<a id="{recipe.name}"></a>\n\n## {_plain(recipe.title)}',
        _plain(recipe.about),
        f"```sh\n{_command(data).strip('`')}\n```",
        *(f"![{_plain(figure.title)}]({_figure_file(data, figure.id)})" for figure in recipe.figures),
        _table(map(_cells, judged), ("claim", "published", "ours", "verdict")) if judged else "",
        *(_compared(verdict) for verdict in judged if verdict.rows),
        *(_points(data, sweep) for sweep in data.sweeps),
        _made(data),
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(verdict: Verdict) -> tuple[str, str, str, str]:
    claim = verdict.claim
    published = f"{verdict.published} [{claim.pedigree}] {claim.where}"
    return claim.claim, published, verdict.ours, f"**{verdict.outcome}**"


def _compared(verdict: Verdict) -> str:
    """Published and measured, point by point."""
    rows = [
        (row.at, number(row.published), shown(row.ours), f"{row.ours.value - row.published:+.3f}")
        for row in verdict.rows
    ]
    return f"{_plain(verdict.claim.claim)}:\n\n{_table(rows, ('', 'published', 'ours', 'difference'))}"


def _points(data: Reproduction, sweep: SweepRecord) -> str:
    """What was measured at every point of a sweep, in the quantities that claims and figures speak of."""
    declared = next(each for each in data.recipe.sweeps if each.id == sweep.id)
    wanted = [words for words in _quantities(data, sweep.id) if words not in declared.grid]
    quantities = [words for words in wanted if any(_value(point, words) for point in sweep.points)]
    headers = (*declared.grid, *quantities, "seeds", "parameters", "run")
    rows = [
        (
            *point.values.values(),
            *(_value(point, words) or "–" for words in quantities),
            len(point.seeds) or "–",
            number(point.numbers.get("n_parameters")),
            point.run_id or f"failed: {point.reason}",
        )
        for point in sweep.points
    ]
    return f"Runs: {_plain(declared.label)}. {_size_words(declared, data)}\n\n{_table(rows, headers)}"


def _quantities(data: Reproduction, sweep: str) -> list[str]:
    """The quantities that claims and figures read off a sweep, each once."""
    claims = [words for claim in data.recipe.claims if sweep in claim.sweep_ids() for words in claim.expressions()]
    figures = [words for figure in data.recipe.figures if sweep in figure.sweeps for words in figure.expressions()]
    return list(dict.fromkeys([*claims, *figures]))


def _value(point: PointRecord, words: str) -> str:
    try:
        return "" if point.reason else shown(measured(point, words))
    except UserError:
        return ""


def _size_words(sweep: RecipeSweep, data: Reproduction) -> str:
    """How it was run, and what `--preset paper` changes."""
    at = sweep.at_size(data.size)
    shown = {
        "task": at.task,
        "architecture": at.arch,
        "load": at.at,
        "protocol": at.protocol if at.protocol != "capbench" else None,
        "solver": at.solver if at.solver != "adam" else None,
        "least": at.minimize,
        "set": " ".join(at.set),
        "seeds": at.seeds,
        "steps": at.steps,
        "learning rates": ", ".join(f"{rate:g}" for rate in at.rates),
    }
    words = "; ".join(f"{name} {value}" for name, value in shown.items() if value)
    if sweep.paper and data.size != "paper":
        words += f". Under `--preset paper`: {', '.join(f'{name} = {value}' for name, value in sweep.paper.items())}"
    return _plain(words) + "."


def _made(data: Reproduction) -> str:
    """What it took, and with what."""
    made = data.environment
    words = f"Size `{data.size}`; {data.wall_seconds:.0f} s, its runs added up"
    if made is None:
        return f"{words}."
    names = dict.fromkeys(machine.device_name for machine in made.workers or (made,))
    threads = f"{made.threads} thread{'s' if made.threads > 1 else ''}{' a worker' if made.workers else ''}"
    return _plain(
        f"{words}, on {' and '.join(names)} with {threads}; capbench {made.capbench}, torch {made.torch}, "
        f"Python {made.python}."
    )


def _command(data: Reproduction) -> str:
    size = "" if data.size == "standard" else f" --preset {data.size}"
    return f"`capbench reproduce {data.recipe.name}{size}`"


def _figure_file(data: Reproduction, figure: str) -> str:
    return f"{data.recipe.name}-{figure}.svg"


def _by_paper(found: Iterable[Reproduction]) -> dict[str, list[Reproduction]]:
    papers: dict[str, list[Reproduction]] = {}
    for data in found:
        papers.setdefault(data.recipe.paper, []).append(data)
    return papers


def _table(rows: Iterable[Sequence[object]], headers: Sequence[str]) -> str:
    cells = [[_plain(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return tabulate(cells, headers=[_plain(name) for name in headers], tablefmt="github", disable_numparse=True)


def _plain(text: str) -> str:
    """One line in which no tag can hide."""
    return plain(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
