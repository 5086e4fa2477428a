"""Building: records in, README, charts and site out; and the check that the committed files are not stale."""

from __future__ import annotations

import os
from pathlib import Path

from capbench.errors import RunFailed
from capbench_leaderboard.charts import capacity_data, chart_specs, is_worth_drawing, ratio_data, render_svg, thin_out
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board, read_board
from capbench_leaderboard.readme import readme
from capbench_leaderboard.site.writer import write_site
from capbench_leaderboard.slugs import unique_slugs


def build_board(records: Path, out: Path) -> Board:
    """Writes README.md, charts/ and site/ under `out`."""
    with ProcessPool() as pool:
        board = read_board(records, pool)
        pictures = draw_charts(board)
        (out / "charts").mkdir(parents=True, exist_ok=True)
        for old in (out / "charts").glob("*.svg"):
            old.unlink()
        for name, text in _committed_files(board, pictures, records, out).items():
            (out / name).write_text(text, encoding="utf-8")
        write_site(board, out / "site", pictures, pool)
    return board


def check_board(records: Path, out: Path) -> Board:
    """Raises if the README or a chart is not what the records give."""
    with ProcessPool() as pool:
        board = read_board(records, pool)
    expected = _committed_files(board, draw_charts(board), records, out)
    present = {f"charts/{path.name}" for path in (out / "charts").glob("*.svg")}
    stale = [name for name, text in expected.items() if _read_if_there(out / name) != text]
    stale += sorted(present - set(expected))
    if stale:
        raise RunFailed(f"stale: {', '.join(stale)}; run `capbench leaderboard build` and commit what it writes")
    return board


def draw_charts(board: Board) -> dict[str, str]:
    """SVG charts by file name: capacity against parameters and measured over bound, for each task with enough data."""
    tasks = unique_slugs(board.tasks)
    specs, pictures = chart_specs(), {}
    for task, name in tasks.items():
        own = thin_out(board.charted_entries(task))
        for kind, spec, data in (("capacity", "capacity", capacity_data), ("bounds", "ratio", ratio_data)):
            datasets = data(own, {})
            if is_worth_drawing(datasets):
                pictures[f"{name}-{kind}.svg"] = render_svg(specs[spec], datasets)
    return pictures


def _committed_files(board: Board, pictures: dict[str, str], records: Path, out: Path) -> dict[str, str]:
    """Contents of the files that are kept under version control, by path under the board's folder."""
    link = Path(os.path.relpath(records, out)).as_posix()
    return {"README.md": readme(board, sorted(pictures), link), **{f"charts/{n}": t for n, t in pictures.items()}}


def _read_if_there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
