"""The pages of reproductions: one per paper and an index, each a pure function of the data files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from capbench.documents.files import write_whole
from capbench.documents.text import number, plain
from capbench.errors import BadSetting, UserError
from capbench.measure.options import MeasureOptions
from capbench.measure.presets import RecipePreset
from capbench.registry.registry import Registry
from capbench.report.reproduction.plot import figure_svg
from capbench.report.reproduction.summary import summary
from capbench.studies.reproduce.claim_text import value_text
from capbench.studies.reproduce.claims import Group
from capbench.studies.reproduce.data import PointRecord, Reproduction, SweepRecord, data_text, read_reproduction
from capbench.studies.reproduce.judging import JudgedClaim, TableRow, judge_claims
from capbench.studies.reproduce.recipe import PaperRecipe, RecipeSweep, load_recipe, recipe_names
from capbench.studies.reproduce.staleness import stale_reasons
from capbench.studies.reproduce.values import evaluate_at
from capbench.studies.reproduce.verdict import Verdict

DATA = "data"
CLAIMS_PAGE = "claims.md"
PUBLISHED = Path("docs/reproductions")
PUBLISHED_SIZE: RecipePreset = "standard"
Stale = Mapping[str, tuple[str, ...]]
"""By recipe, what has changed since its data were made."""
WRITTEN_BY = "Written by `capbench reproduce"
LEGEND = """\
*agrees*: the measured value is within the tolerance of the claim, or its interval contains the published number.
*agrees in direction*: the published direction is shown beyond the variation between seeds, but not the published size;
never of a single number, which has no direction.
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
    for name in ("index.md", CLAIMS_PAGE, *(f"{recipe.paper}.md" for recipe in recipes)):
        page = folder / name
        if page.exists() and WRITTEN_BY not in page.read_text(encoding="utf-8", errors="replace"):
            raise BadSetting(f"{page} was not written by capbench reproduce; name another folder with --out")
    for recipe in recipes:
        path = folder / DATA / f"{recipe.name}.json"
        kept = read_reproduction(path).size if path.exists() else size
        if kept != size:
            raise BadSetting(f"{path} has the preset {kept}, not {size}; name another folder with --out, or delete it")


def write_reproduction(data: Reproduction, folder: Path, registry: Registry) -> None:
    """Writes the data of a recipe, then all pages and figures of the folder."""
    write_whole(folder / DATA / f"{data.recipe.name}.json", data_text(data))
    write_pages(folder, registry)


def judge_again(folder: Path, registry: Registry) -> None:
    """Gives data whose sweeps are those of today's recipe its claims and figures, and writes all pages again."""
    for path in _data_files(folder):
        data = read_reproduction(path)
        today = load_recipe(data.recipe.name) if data.recipe.name in recipe_names() else data.recipe
        if today.sweeps == data.recipe.sweeps:
            write_whole(path, data_text(data.model_copy(update={"recipe": today})))
    write_pages(folder, registry)


def write_pages(folder: Path, registry: Registry) -> None:
    """Writes all pages and figures again from the data files."""
    for name, text in render_pages(folder, registry).items():
        write_whole(folder / name, text)


def render_pages(folder: Path, registry: Registry) -> dict[str, str]:
    """All pages and figures by file name, from the data files of a folder and the code of today."""
    found = [read_reproduction(path) for path in _data_files(folder)]
    if not found:
        return {}
    stale = {data.recipe.name: reasons for data in found if (reasons := stale_reasons(data, registry))}
    pages = {f"{paper}.md": paper_page(of_paper, stale) for paper, of_paper in _by_paper(found).items()}
    figures = {
        _figure_file(data, figure.id): figure_svg(figure, data) for data in found for figure in data.recipe.figures
    }
    return {"index.md": index_page(found, stale), CLAIMS_PAGE: claims_page(found, stale), **pages, **figures}


def _data_files(folder: Path) -> list[Path]:
    return sorted((folder / DATA).glob("*.json"))


def index_page(found: Sequence[Reproduction], stale: Stale) -> str:
    """What came out, in a minute: a summary, three figures, and how many claims of each group have each verdict."""
    judged = _judge_all(found)
    seconds = sum(data.wall_seconds for data in found)
    parts = [
        "# Reproductions",
        "What the papers report, and what capbench measures. Written by `capbench reproduce --all` from the files in "
        f"`data/`; do not edit. [Every claim with its verdict]({CLAIMS_PAGE}).",
        summary(judged),
        "## In numbers",
        _tally(judged),
        f"{len(found)} recipes; their run times add up to {seconds / 60:.0f} minutes, and the elapsed time is shorter "
        f"where runs were parallel. {_stale_count(stale)}",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def claims_page(found: Sequence[Reproduction], stale: Stale) -> str:
    """Every claim of every recipe with its verdict, by group, and which recipes are stale."""
    judged = _judge_all(found)
    by_group = {group: [pair for pair in judged if pair[1].claim.counted_as == group] for group in GROUPS}
    parts = [
        "# Every claim",
        f"{WRITTEN_BY} --all` from the files in `data/`; do not edit. [In short](index.md).",
        LEGEND.strip(),
        _stale_list(stale),
        *(_group_section(group, pairs, stale) for group, pairs in by_group.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _judge_all(found: Sequence[Reproduction]) -> list[tuple[Reproduction, JudgedClaim]]:
    return [(data, each) for data in found for each in judge_claims(data)]


def _stale_count(stale: Stale) -> str:
    if not stale:
        return ""
    return f"{len(stale)} of them were made with code that is not today's or not recorded, and wait to be run again."


def _tally(judged: Sequence[tuple[Reproduction, JudgedClaim]]) -> str:
    """How many claims of each group have each verdict; checks are not counted."""
    rows = []
    for group, (title, _) in GROUPS.items():
        verdicts = [each.verdict for _, each in judged if each.claim.counted_as == group]
        if group != "check" and verdicts:
            rows.append((title, len(verdicts), *(verdicts.count(verdict) for verdict in Verdict)))
    return _table(rows, ("", "claims", *(verdict.value for verdict in Verdict)))


def _stale_list(stale: Stale) -> str:
    """Which recipes wait to be run again, by the reason."""
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for name, reasons in stale.items():
        by_reason.setdefault(reasons, []).append(f"`{name}`")
    if not stale:
        return ""
    lines = [f"- {_plain('; '.join(reasons))}: {', '.join(names)}" for reasons, names in by_reason.items()]
    return "Stale, to be run again; their verdicts are marked:\n\n" + "\n".join(lines)


def _group_section(group: Group, judged: Sequence[tuple[Reproduction, JudgedClaim]], stale: Stale) -> str:
    if not judged:
        return ""
    title, meaning = GROUPS[group]
    rows = [
        (
            f"[{data.recipe.paper}]({data.recipe.paper}.md#{data.recipe.name})",
            *_cells(each, data.recipe.name in stale),
            _command(data),
        )
        for data, each in judged
    ]
    return f"## {title}\n\n{meaning}\n\n" + _table(rows, ("paper", "claim", "published", "ours", "verdict", "command"))


def paper_page(found: Sequence[Reproduction], stale: Stale) -> str:
    """The recipes of one paper."""
    citation = next((data.recipe.citation for data in found if data.recipe.citation), "")
    parts = [
        f"# {_plain(found[0].recipe.paper)}",
        _plain(citation),
        "Written by `capbench reproduce`; do not edit. [What the verdicts mean](claims.md).",
        *(_section(data, stale.get(data.recipe.name, ())) for data in found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(data: Reproduction, stale: Sequence[str]) -> str:
    judged = judge_claims(data)
    recipe = data.recipe
    cells = [_cells(each, bool(stale)) for each in judged]
    parts = [
        f'<a id="{recipe.name}"></a>\n\n## {_plain(recipe.title)}',
        _plain(recipe.about),
        f"**Stale**: {_plain('; '.join(stale))}." if stale else "",
        f"```sh\n{_command(data).strip('`')}\n```",
        *(f"![{_plain(figure.title)}]({_figure_file(data, figure.id)})" for figure in recipe.figures),
        _table(cells, ("claim", "published", "ours", "verdict")) if judged else "",
        *(_comparison(each) for each in judged if each.rows),
        *(_points(data, sweep) for sweep in data.sweeps),
        _cost(data),
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(judged: JudgedClaim, is_stale: bool) -> tuple[str, str, str, str]:
    claim = judged.claim
    published = f"{judged.published} [{claim.pedigree}] {claim.where}"
    marks = [mark for mark, applies in (("check", claim.counted_as == "check"), ("stale", is_stale)) if applies]
    verdict = f"**{judged.verdict}**" + (f" ({', '.join(marks)})" if marks else "")
    return claim.claim, published, judged.ours, verdict


def _comparison(judged: JudgedClaim) -> str:
    """Published and measured values, one row per published point."""
    return f"{_plain(judged.claim.claim)}:\n\n" + _table(
        map(_compared, judged.rows), ("", "published", "ours", "difference", "within the tolerance")
    )


def _compared(row: TableRow) -> tuple[str, ...]:
    if row.ours is None:
        return row.label, number(row.published), "not run at this size", "–", "–"
    gap = row.ours.value - row.published
    is_within = f"{'yes' if row.is_within else 'no'} (± {row.within:g})"
    return row.label, number(row.published), value_text(row.ours), f"{gap:+.3f}", is_within


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
