"""Building: records in, README, charts and site out; or a look at whether what is committed is stale."""

from __future__ import annotations

import os
from pathlib import Path

from capbench.errors import RunFailed
from capbench_leaderboard.address import addresses
from capbench_leaderboard.board import Board, read_board
from capbench_leaderboard.charts import capacity_data, is_worth_drawing, ratio_data, specifications, svg, thinned
from capbench_leaderboard.many import Workers
from capbench_leaderboard.markdown import readme
from capbench_leaderboard.site import write_site


def build(records: Path, out: Path) -> Board:
    """Writes README.md, charts/ and site/ under `out`."""
    with Workers() as workers:
        board = read_board(records, workers)
        pictures = draw(board)
        (out / "charts").mkdir(parents=True, exist_ok=True)
        for old in (out / "charts").glob("*.svg"):
            old.unlink()
        for name, text in _committed(board, pictures, records, out).items():
            (out / name).write_text(text, encoding="utf-8")
        write_site(board, out / "site", pictures, workers)
    return board


def check(records: Path, out: Path) -> Board:
    """Raises where the README or a chart is not what the records give."""
    with Workers() as workers:
        board = read_board(records, workers)
    wanted = _committed(board, draw(board), records, out)
    there = {f"charts/{path.name}" for path in (out / "charts").glob("*.svg")}
    stale = [name for name, text in wanted.items() if _text(out / name) != text]
    stale += sorted(there - set(wanted))
    if stale:
        raise RunFailed(f"stale: {', '.join(stale)}; run `capbench leaderboard build` and commit what it writes")
    return board


def draw(board: Board) -> dict[str, str]:
    """The pictures: capacity against parameters and measured over bound, for each task that has any."""
    tasks = addresses(board.tasks)
    specs, found = specifications(), {}
    for task, name in tasks.items():
        own = thinned(board.charted(task))
        for kind, spec, data in (("capacity", "capacity", capacity_data), ("bounds", "ratio", ratio_data)):
            datasets = data(own, {})
            if is_worth_drawing(datasets):
                found[f"{name}-{kind}.svg"] = svg(specs[spec], datasets)
    return found


def _committed(board: Board, pictures: dict[str, str], records: Path, out: Path) -> dict[str, str]:
    """What is kept under version control, by its path under the board's folder."""
    link = Path(os.path.relpath(records, out)).as_posix()
    return {"README.md": readme(board, sorted(pictures), link), **{f"charts/{n}": t for n, t in pictures.items()}}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
