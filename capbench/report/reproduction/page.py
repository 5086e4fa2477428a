"""The pages of reproductions: one per paper and an index, each a pure function of the data files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tabulate import tabulate

from capbench.documents.files import write_whole
from capbench.documents.text import number, plain
from capbench.errors import BadSetting, UserError
from capbench.measure.options import MeasureOptions
from capbench.measure.presets import RecipePreset
from capbench.report.reproduction.plot import figure_svg
from capbench.report.reproduction.summary import summary
from capbench.studies.reproduce.claim_text import value_text
from capbench.studies.reproduce.claims import Group
from capbench.studies.reproduce.data import PointRecord, Reproduction, SweepRecord, data_text, read_reproduction
from capbench.studies.reproduce.judging import JudgedClaim, judge_claims
from capbench.studies.reproduce.recipe import PaperRecipe, RecipeSweep
from capbench.studies.reproduce.values import evaluate_at
from capbench.studies.reproduce.verdict import Verdict

DATA = "data"
PUBLISHED = Path("docs/reproductions")
PUBLISHED_SIZE: RecipePreset = "standard"
WRITTEN_BY = "Written by `capbench reproduce"
LEGEND = """\
*agrees*: the measured value is within the tolerance of the claim, or its interval contains the published value.
*agrees in direction*: the published direction is shown beyond the variation between seeds, but not the published value;
for a single number: within a factor of 1.25.
*no difference shown*: the interval contains both the claim and its opposite. *does not*: the opposite is shown.
*not shown here*: the data cannot decide, and the reason is given instead; points at the ceiling of a metric are no
evidence. Intervals are 95 %: Student's t over seeds at a fixed load, the search's own for a capacity, a bootstrap for a
fitted law. Published values carry their pedigree: stated in the [paper], read from the authors' [code], [derived] for
capbench from either, or a choice of [protocol].
"""
GROUPS: dict[Group, tuple[str, str]] = {
    "published": ("Published claims", "stated in a paper, or read in the authors' code"),
    "notes": ("Claims of the notes", "drawn from the papers' text, theorems or tables, not stated by their authors"),
    "own": ("Own questions", "asked by capbench"),
    "check": ("Checks", "true by construction or by definition if the code is right; not counted"),
}


def default_page_folder(size: RecipePreset) -> Path:
    """Where pages go by default: docs/reproductions if it is ours, else reproductions; a folder per other preset."""
    if size != PUBLISHED_SIZE:
        return Path(f"reproductions-{size}")
    return PUBLISHED if (PUBLISHED / DATA).is_dir() else Path("reproductions")


def check_page_folder(folder: Path, recipes: Sequence[PaperRecipe], size: RecipePreset) -> None:
    """Raises BadSetting, before any training, where pages would replace others' files or data of another preset."""
    for name in ("index.md", *(f"{recipe.paper}.md" for recipe in recipes)):
        page = folder / name
        if page.exists() and WRITTEN_BY not in page.read_text(encoding="utf-8", errors="replace"):
            raise BadSetting(f"{page} was not written by capbench reproduce; name another folder with --out")
    for recipe in recipes:
        path = folder / DATA / f"{recipe.name}.json"
        kept = read_reproduction(path).size if path.exists() else size
        if kept != size:
            raise BadSetting(f"{path} has the preset {kept}, not {size}; name another folder with --out, or delete it")


def write_reproduction(data: Reproduction, folder: Path) -> None:
    """Writes the data of a recipe, then all pages and figures of the folder."""
    write_whole(folder / DATA / f"{data.recipe.name}.json", data_text(data))
    write_pages(folder)


def write_pages(folder: Path) -> None:
    """Writes all pages and figures again from the data files."""
    for name, text in render_pages(folder).items():
        write_whole(folder / name, text)


def render_pages(folder: Path) -> dict[str, str]:
    """All pages and figures by file name, from the data files of a folder."""
    found = [read_reproduction(path) for path in sorted((folder / DATA).glob("*.json"))]
    if not found:
        return {}
    pages = {f"{paper}.md": paper_page(of_paper) for paper, of_paper in _by_paper(found).items()}
    figures = {
        _figure_file(data, figure.id): figure_svg(figure, data) for data in found for figure in data.recipe.figures
    }
    return {"index.md": index_page(found), **pages, **figures}


def index_page(found: Sequence[Reproduction]) -> str:
    """The index: a summary, then every claim of every recipe with its verdict, counted by group."""
    judged = [(data, each) for data in found for each in judge_claims(data)]
    seconds = sum(data.wall_seconds for data in found)
    parts = [
        "# Reproductions",
        "What the papers report, and what capbench measures. Written by `capbench reproduce --all` from the files in "
        "`data/`; do not edit.",
        summary(judged),
        "## All claims",
        _tally(judged),
        f"{len(found)} recipes; their run times add up to {seconds / 60:.0f} minutes, and the elapsed time is shorter "
        "where runs were parallel.",
        LEGEND.strip(),
        *(_group_section(group, [pair for pair in judged if pair[1].claim.counted_as == group]) for group in GROUPS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _tally(judged: Sequence[tuple[Reproduction, JudgedClaim]]) -> str:
    """How many claims of each group have each verdict; checks are not counted."""
    rows = []
    for group, (title, _) in GROUPS.items():
        verdicts = [each.verdict for _, each in judged if each.claim.counted_as == group]
        if group != "check" and verdicts:
            rows.append((title, len(verdicts), *(verdicts.count(verdict) for verdict in Verdict)))
    return _table(rows, ("", "claims", *(verdict.value for verdict in Verdict)))


def _group_section(group: Group, judged: Sequence[tuple[Reproduction, JudgedClaim]]) -> str:
    if not judged:
        return ""
    title, meaning = GROUPS[group]
    rows = [
        (f"[{data.recipe.paper}]({data.recipe.paper}.md#{data.recipe.name})", *_cells(each), _command(data))
        for data, each in judged
    ]
    return f"## {title}\n\n{meaning}\n\n" + _table(rows, ("paper", "claim", "published", "ours", "verdict", "command"))


def paper_page(found: Sequence[Reproduction]) -> str:
    """The recipes of one paper."""
    citation = next((data.recipe.citation for data in found if data.recipe.citation), "")
    parts = [
        f"# {_plain(found[0].recipe.paper)}",
        _plain(citation),
        "Written by `capbench reproduce`; do not edit. [What the verdicts mean](index.md).",
        *(_section(data) for data in found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(data: Reproduction) -> str:
    judged = judge_claims(data)
    recipe = data.recipe
    parts = [
        f'<a id="{recipe.name}"></a>\n\n## {_plain(recipe.title)}',
        _plain(recipe.about),
        f"```sh\n{_command(data).strip('`')}\n```",
        *(f"![{_plain(figure.title)}]({_figure_file(data, figure.id)})" for figure in recipe.figures),
        _table(map(_cells, judged), ("claim", "published", "ours", "verdict")) if judged else "",
        *(_comparison(each) for each in judged if each.rows),
        *(_points(data, sweep) for sweep in data.sweeps),
        _cost(data),
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(judged: JudgedClaim) -> tuple[str, str, str, str]:
    claim = judged.claim
    published = f"{judged.published} [{claim.pedigree}] {claim.where}"
    verdict = f"**{judged.verdict}**" + (" (check)" if claim.counted_as == "check" else "")
    return claim.claim, published, judged.ours, verdict


def _comparison(judged: JudgedClaim) -> str:
    """Published and measured values, one row per point."""
    rows = [
        (row.label, number(row.published), value_text(row.ours), f"{row.ours.value - row.published:+.3f}")
        for row in judged.rows
    ]
    return f"{_plain(judged.claim.claim)}:\n\n{_table(rows, ('', 'published', 'ours', 'difference'))}"


def _points(data: Reproduction, sweep: SweepRecord) -> str:
    """One row per point of a sweep, with the quantities that claims and figures use."""
    declared = next(each for each in data.recipe.sweeps if each.id == sweep.id)
    wanted = [expression for expression in _expressions(data, sweep.id) if expression not in declared.grid]
    expressions = [each for each in wanted if any(_value(point, each) for point in sweep.points)]
    headers = (*declared.grid, *expressions, "seeds", "parameters", "run")
    rows = [
        (
            *point.values.values(),
            *(_value(point, expression) or "–" for expression in expressions),
            len(point.seeds) or "–",
            number(point.numbers.get("n_parameters")),
            point.run_id or f"failed: {point.reason}",
        )
        for point in sweep.points
    ]
    return f"Runs: {_plain(declared.label)}. {_settings(declared, data)}\n\n{_table(rows, headers)}"


def _expressions(data: Reproduction, sweep: str) -> list[str]:
    """The expressions that claims and figures evaluate on a sweep, each once."""
    claims = [text for claim in data.recipe.claims if sweep in claim.sweep_ids() for text in claim.expressions()]
    figures = [text for figure in data.recipe.figures if sweep in figure.sweeps for text in figure.expressions()]
    return list(dict.fromkeys([*claims, *figures]))


def _value(point: PointRecord, expression: str) -> str:
    try:
        return "" if point.reason else value_text(evaluate_at(point, expression))
    except UserError:
        return ""


def _settings(sweep: RecipeSweep, data: Reproduction) -> str:
    """The settings of a sweep, and what `--preset paper` changes."""
    at = sweep.at_size(data.size)
    settings = {
        "task": at.task,
        "architecture": at.arch,
        "load": at.at,
        "protocol": _unless_default("protocol", at.protocol),
        "solver": _unless_default("solver", at.solver),
        "minimize": at.minimize,
        "set": " ".join(at.set),
        "seeds": at.seeds,
        "steps": at.steps,
        "learning rates": ", ".join(f"{rate:g}" for rate in at.rates),
    }
    text = "; ".join(f"{name} {value}" for name, value in settings.items() if value)
    if sweep.paper and data.size != "paper":
        text += f". Under `--preset paper`: {', '.join(f'{name} = {value}' for name, value in sweep.paper.items())}"
    return _plain(text) + "."


def _unless_default(option: str, value: str) -> str | None:
    return None if value == MeasureOptions.model_fields[option].default else value


def _cost(data: Reproduction) -> str:
    """The total run time, the hardware and the versions."""
    used = data.environment
    cost = f"Size `{data.size}`; {data.wall_seconds:.0f} s in total over its runs"
    if used is None:
        return f"{cost}."
    names = dict.fromkeys(machine.device_name for machine in used.workers or (used,))
    threads = f"{used.threads} thread{'s' if used.threads > 1 else ''}{' per worker' if used.workers else ''}"
    return _plain(
        f"{cost}, on {' and '.join(names)} with {threads}; capbench {used.capbench}, torch {used.torch}, "
        f"Python {used.python}."
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
    """One line of text with HTML escaped."""
    return plain(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
