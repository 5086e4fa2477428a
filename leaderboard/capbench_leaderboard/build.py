"""Building: records in, README, charts and site out; and the check that the committed files are not stale."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from capbench.errors import BadSetting, CapbenchError, RunFailed
from capbench_leaderboard.bits_chart import bits_data
from capbench_leaderboard.charts import chart_specs, is_worth_drawing, render_svg, thin_out
from capbench_leaderboard.heat_map import HeatMap
from capbench_leaderboard.heat_svg import heat_svg
from capbench_leaderboard.process_pool import ProcessPool
from capbench_leaderboard.ranking.board import Board, plain_error, read_board
from capbench_leaderboard.readme import OVERVIEW, charts_of, readme
from capbench_leaderboard.site.writer import check_site_folder, write_site
from capbench_leaderboard.slugs import unique_slugs


def build_board(records: Path, out: Path) -> Board:
    """Writes README.md, charts/ and site/ under `out`; before the first write it refuses to replace others' files."""
    with ProcessPool() as pool:
        return leave_out_culprits(read_board(records, pool), partial(_write_board, records, out, pool))


def _write_board(records: Path, out: Path, pool: ProcessPool, board: Board) -> None:
    pictures = draw_charts(board)
    files = _committed_files(board, pictures, records, out)
    own = _written_files(out)
    _refuse_foreign(out, files, own)
    (out / "charts").mkdir(parents=True, exist_ok=True)
    for name in own - {"README.md"}:
        (out / name).unlink(missing_ok=True)
    for name, text in files.items():  # the README first: it names the charts that are ours
        (out / name).write_text(text, encoding="utf-8")
    write_site(board, out / "site", pictures, pool)


def leave_out_culprits(board: Board, write: Callable[[Board], None]) -> Board:
    """Writes a board and returns it, without the records that make writing fail: nothing in a file stops a build.

    Raises what fails without any record too.
    """
    failure = _failure(board, write)
    while failure is not None:
        fewest, most = 0, len(board.entries)  # writing succeeds with this many of the first records, fails with these
        while fewest < most:
            middle = (fewest + most) // 2
            found = _failure(replace(board, entries=board.entries[:middle]), write)
            fewest, most, failure = (middle + 1, most, failure) if found is None else (fewest, middle, found)
        if most == 0:
            raise failure
        culprit = board.entries[most - 1]
        line = (
            f"{culprit.path}: the record cannot be shown: {plain_error(failure)}; check its numbers, or remove the file"
        )
        board = replace(
            board, entries=tuple(e for e in board.entries if e is not culprit), broken=(*board.broken, line)
        )
        failure = _failure(board, write)
    return board


def _failure(board: Board, write: Callable[[Board], None]) -> Exception | None:
    """What a record makes of writing the board; an error raised on purpose is not a record's."""
    try:
        write(board)
    except (CapbenchError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - a record may hold whatever passes reading
        return error
    return None


def check_board(records: Path, out: Path) -> Board:
    """Raises if the README or a chart is not what the records give."""
    expected: dict[str, str] = {}

    def derive(board: Board) -> None:
        expected.clear()
        expected.update(_committed_files(board, draw_charts(board), records, out))

    with ProcessPool() as pool:
        board = leave_out_culprits(read_board(records, pool), derive)
    stale = [name for name, text in expected.items() if _read_if_there(out / name) != text]
    stale += sorted(name for name in _written_files(out) - set(expected) if (out / name).exists())
    if stale:
        raise RunFailed(f"stale: {', '.join(stale)}; run `capbench leaderboard build` and commit what it writes")
    return board


def draw_charts(board: Board) -> dict[str, str]:
    """SVG charts by file name: the overview, and bits per parameter for each task with enough data."""
    overview = heat_svg(HeatMap(board))
    pictures = {OVERVIEW: overview} if overview else {}
    for task, name in unique_slugs(board.tasks).items():
        datasets = bits_data(thin_out(board.drawn_entries(task)), {})
        if is_worth_drawing(datasets):
            pictures[f"{name}-bits.svg"] = render_svg(chart_specs()["bits"], datasets)
    return pictures


def _committed_files(board: Board, pictures: dict[str, str], records: Path, out: Path) -> dict[str, str]:
    """Contents of the files that are kept under version control, by path under the board's folder."""
    link = Path(os.path.relpath(records, out)).as_posix()
    return {"README.md": readme(board, sorted(pictures), link), **{f"charts/{n}": t for n, t in pictures.items()}}


def _written_files(out: Path) -> set[str]:
    """The files of an earlier build: its README and the charts that it shows; none where the README is not ours."""
    charts = charts_of(_read_if_there(out / "README.md") or "")
    return set() if charts is None else {"README.md", *charts}


def _refuse_foreign(out: Path, files: Collection[str], own: Collection[str]) -> None:
    """Raises BadSetting where a build would replace a file that no build wrote."""
    foreign = sorted(name for name in files if name not in own and (out / name).exists())
    if foreign:
        raise BadSetting(
            f"leaderboard build does not replace files that it did not write, got {foreign[0]} in {str(out)!r}; "
            f"choose another folder with --out, or move the file"
        )
    check_site_folder(out / "site")


def _read_if_there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
