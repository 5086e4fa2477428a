"""The site in a real browser, opened from disk: it sorts, filters, draws, fetches nothing, runs no hostile script."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capbench.documents.colours import architecture_colour
from capbench_leaderboard.build import build_board
from tests.faults.hostile import HOSTILE
from tests.leaderboard.synthetic import LADDER, SyntheticRecord, write_ladders, write_record, write_result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RECORDS = "[data-grid=all]"
"""The table of all records on the overview."""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for i in range(60):
        tier = (1024, 4096)[i % 2]
        write_record(
            folder / "records",
            SyntheticRecord(architecture=f"arch{i // 2:02}", capacity=15 + 2 * i, tier=tier, noise=0.5),
        )
    base = SyntheticRecord().result()
    for i, text in enumerate(HOSTILE):
        named = {"name": text, "plugin": text}
        changes = {
            "task": base.task.model_copy(update=named if i < 3 else {"name": "hostile"}),
            "architecture": base.architecture.model_copy(update=named),
            "run_id": f"hostile{i}",
            "bounds": tuple(bound.model_copy(update={"id": text}) for bound in base.bounds),
        }
        write_result(folder / "records" / "hostile" / "x" / f"{i}.json", base.model_copy(update=changes))
    build_board(folder / "records", folder)
    return folder / "site"


@pytest.fixture(scope="module")
def ladders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site like that of the standard suite, at two sizes."""
    folder = tmp_path_factory.mktemp("ladders")
    write_ladders(folder / "records", tasks=("rgr", "triples"), tiers=LADDER[:2], seeds=2)
    build_board(folder / "records", folder)
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        # In CI a missing browser must fail, not skip.
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs Chromium; install it to run these")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test on a console error, a request beyond the disk, or a dialogue."""
    opened = browser.new_page()
    opened.set_default_timeout(120_000)
    faults: list[str] = []
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else faults.append(r.url))
    opened.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    yield opened
    opened.close()
    assert faults == []


def column(page: Any, n: int) -> list[str]:
    return [cell.strip() for cell in page.locator(f"{RECORDS} tbody tr td:nth-child({n})").all_inner_texts()]


def count_marks(page: Any) -> int:
    """Number of marks in the charts of a page, once they are drawn."""
    for chart in page.locator(".chart").all():  # a chart is drawn when it comes into view
        chart.scroll_into_view_if_needed()
        chart.locator("svg path").first.wait_for(state="attached")
    return int(page.locator(".chart svg .mark-symbol path").count())


def test_a_table_sorts_both_ways_by_mouse_and_by_keyboard(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    head = page.locator(f"{RECORDS} th", has_text="capacity")
    index = 1 + page.locator(f"{RECORDS} th").all_inner_texts().index(head.inner_text())
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = column(page, index)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, index) != up
    numbers = [float(text.split()[-1].replace(",", "")) for text in column(page, index)]
    assert numbers == sorted(numbers, reverse=True)


def test_a_filter_keeps_only_matching_rows(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator(f"{RECORDS} .filter").fill("arch07")
    assert page.locator(f"{RECORDS} tbody tr").count() == 2
    assert page.locator(f"{RECORDS} .count").inner_text().startswith("2 of ")


def test_a_long_table_has_pages(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    first = column(page, 5)
    page.locator(RECORDS).get_by_role("button", name="Next").click()
    assert set(column(page, 5)).isdisjoint(first) or column(page, 5) != first


def test_search_finds_a_record_and_opens_it(page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator("#search").click()
    page.locator("#search").press_sequentially("arch11 rgr")
    page.locator("#found a").first.click()
    page.wait_for_url("**/records/*")
    assert "arch11" in page.locator("h1").inner_text()


def test_a_record_opens_from_the_table_with_its_curve_trials_and_command(page: Any, site: Path) -> None:
    page.goto((site / "tasks" / "rgr.html").as_uri())
    page.locator("tbody a", has_text="arch").first.click()
    page.wait_for_url("**/records/*")
    assert count_marks(page) >= 10
    page.locator("details.trials summary").click()
    page.wait_for_selector("details.trials tbody tr")
    assert page.locator("details.trials tbody tr").count() == 44
    assert "capbench run --task rgr" in page.locator("pre").inner_text()


def test_charts_are_drawn_on_every_kind_of_page(page: Any, site: Path) -> None:
    for path in ("index.html", "tasks/rgr.html", "architectures/arch07.html"):
        page.goto((site / path).as_uri())
        assert count_marks(page) > 0, path


SHIFTS = """new Promise(resolve => new PerformanceObserver(list => resolve(
  list.getEntries().reduce((sum, each) => sum + each.value, 0))).observe({ type: "layout-shift", buffered: true })
  || setTimeout(() => resolve(0), 300))"""
"""The browser's own measure of how far the content has shifted since the page was opened."""


def test_content_does_not_shift_when_charts_are_drawn(page: Any, site: Path) -> None:
    for path in ("index.html", "tasks/rgr.html", "architectures/arch07.html"):
        page.goto((site / path).as_uri())
        count_marks(page)
        assert page.evaluate(SHIFTS) < 0.01, path


def test_the_theme_follows_the_system_and_the_button(page: Any, site: Path) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto((site / "index.html").as_uri())
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate(paper) != dark
    assert page.locator("#theme").inner_text() == "Dark"


def test_a_phone_scrolls_tables_and_not_the_page(page: Any, site: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("index.html", "tasks/rgr.html", "compare.html#rgr:arch01,arch02,arch03"):
        page.goto(f"{site.as_uri()}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_no_hostile_record_runs_a_script_or_fetches_anything(page: Any, site: Path) -> None:
    for path in sorted((site / "records").glob("hostile-*.html"))[:12]:
        page.goto(path.as_uri())
        page.wait_for_selector(".chart svg")
    page.goto((site / "tasks" / "hostile.html").as_uri())
    assert count_marks(page) > 0
    page.goto((site / "index.html").as_uri())
    page.locator("#search").click()
    page.locator("#search").press_sequentially("script")
    page.wait_for_selector("#found li")


def test_a_cell_of_the_overview_leads_to_its_record_by_keyboard(page: Any, ladders: Path) -> None:
    page.goto((ladders / "index.html").as_uri())
    row = page.locator(".heat tr", has=page.locator("th", has_text="deltanet"))
    assert row.locator("td").count() == 4
    row.locator("td a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/records/*")
    assert page.locator("h1").inner_text() == "rgr × deltanet"


def test_the_overview_greys_what_is_not_settled(page: Any, ladders: Path) -> None:
    page.goto((ladders / "index.html").as_uri())
    greyed = page.locator(".heat td.unsettled a")
    assert greyed.count() > 0
    settled = page.locator(".heat td.settled a").first
    colour = "each => getComputedStyle(each).color"
    assert greyed.first.evaluate(colour) != settled.evaluate(colour)


def test_a_legend_hides_an_architecture_or_a_family_by_keyboard(page: Any, ladders: Path) -> None:
    page.goto((ladders / "tasks" / "rgr.html").as_uri())
    figure = page.locator("figure", has=page.locator("[data-chart=bits]"))
    figure.locator("svg path").first.wait_for(state="attached")
    key = figure.locator(".key", has_text="deltanet")
    colour = key.locator(".symbol").get_attribute("fill")
    points = figure.locator(f'.chart svg path[fill="{colour}"]')
    assert points.count() > 0
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false"
    points.first.wait_for(state="detached")
    assert figure.get_by_role("group", name="recurrence").locator(".family").get_attribute("aria-pressed") == "false"
    figure.get_by_role("group", name="recurrence").locator(".family").click()
    points.first.wait_for(state="attached")


def test_an_architecture_has_one_colour_in_map_legend_and_chart(page: Any, ladders: Path) -> None:
    colours = set()
    for path in ("index.html", "tasks/rgr.html", "tasks/triples.html", "compare.html#rgr:mha,mlp"):
        page.goto(f"{ladders.as_uri()}/{path}")
        for symbol in page.locator(".symbol").all():
            if symbol.locator("xpath=..").inner_text() == "mha":
                colours.add(symbol.get_attribute("fill"))
    assert colours == {architecture_colour("mha")}


def test_the_address_chooses_which_architectures_are_compared(page: Any, ladders: Path) -> None:
    page.goto(f"{(ladders / 'compare.html').as_uri()}#rgr:mha,deltanet,mlp")
    page.locator(".chart svg path").first.wait_for(state="attached")
    assert page.locator("#compared table").first.locator("thead a").all_inner_texts() == ["mha", "deltanet", "mlp"]
    assert [pick.input_value() for pick in page.locator(".pick").all()] == ["mha", "deltanet", "mlp"]
    assert page.locator("#compared table").count() == 2
    assert "as many facts as" in page.locator("#compared li").first.inner_text()


def test_a_choice_changes_the_address_and_back_restores_it(page: Any, ladders: Path) -> None:
    page.goto(f"{(ladders / 'compare.html').as_uri()}#rgr:mha,gqa")
    page.locator("#task").select_option("triples")
    page.wait_for_url("**#triples:mha,gqa")
    page.locator(".pick").nth(2).select_option("moe")
    page.wait_for_url("**#triples:mha,gqa,moe")
    assert page.locator("#compared table").first.locator("thead a").count() == 3
    page.go_back()
    page.wait_for_url("**#triples:mha,gqa")
    assert page.locator("#compared table").first.locator("thead a").count() == 2


@pytest.mark.parametrize("address", ["", "#nonsense", "#rgr:", "#rgr:<script>alert(1)</script>,%,mha", "#%E0%A4%A:x"])
def test_a_wrong_address_still_compares_two_architectures(page: Any, ladders: Path, address: str) -> None:
    page.goto(f"{(ladders / 'compare.html').as_uri()}{address}")
    page.locator(".chart svg path").first.wait_for(state="attached")
    assert page.locator("#compared table").first.locator("thead a").count() == 2


def test_hostile_names_can_be_compared_and_run_nothing(page: Any, site: Path) -> None:
    page.goto(f"{(site / 'compare.html').as_uri()}#hostile:")
    page.locator(".chart svg path").first.wait_for(state="attached")
    names = page.locator(".pick").first.locator("option").evaluate_all("all => all.map(each => each.value)")
    for name in names[:6]:
        page.locator(".pick").first.select_option(name)
        assert page.locator("#compared table").count() > 0


def test_the_policy_forbids_an_injected_script(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.bad=1\">')")
    page.evaluate("const s = document.createElement('script'); s.textContent = 'window.bad=1'; document.body.append(s)")
    page.wait_for_timeout(100)
    assert page.evaluate("window.bad") is None
    page.close()


def test_a_report_draws_its_charts_from_one_file(page: Any, tmp_path: Path) -> None:
    from capbench_leaderboard.report import report_page

    path = tmp_path / "report.html"
    path.write_text(
        report_page([SyntheticRecord(architecture=a, capacity=c).result() for a, c in (("a", 20), ("b", 90))])
    )
    page.goto(path.as_uri())
    assert count_marks(page) > 20


def test_tables_and_charts_are_shown_without_scripts(browser: Any, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "tasks" / "rgr.html").as_uri())
    assert page.locator("tbody tr").count() > 20
    assert page.locator("noscript img").count() + page.locator("figure img").count() > 0
    assert not page.locator(".chart").first.is_visible()
    context.close()
