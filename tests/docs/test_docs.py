"""The documentation matches the code: examples run, names exist, nothing is left out, and the site builds."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple, get_args

import pytest
from pydantic import BaseModel

import capbench.contract.hookspecs
from capbench import (
    Architecture,
    Bound,
    ConstructiveSolver,
    ExactBound,
    GradientSolver,
    Mixer,
    PairScorer,
    Plugin,
    Solver,
    Task,
)
from capbench.documents.result import Result, TrialStatus
from capbench.measure.estimate import search
from capbench.registry.registry import HOOKS, load_registry
from capbench.report import result_text
from capbench.report.result_plot import DARK_STYLE
from tests.docs.console import PICTURE, commands, first_output, with_output, written

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    "index",
    "cli",
    "python-api",
    "reading-a-result",
    "recipes",
    "plugin-guide",
    "layers",
    "hooks",
    "measuring",
    "theory",
    "calibration",
    "scaling",
    "tutorial",
    "faq",
    "glossary",
    "gallery",
    "architecture",
    "files",
    "citation",
    "leaderboard",
)
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$', re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OTHER_PROGRAMS = re.compile(r"^(?:#SBATCH|sbatch|ray|pip) .*$|`#SBATCH [^`]*`", re.MULTILINE)
"""Commands and options of other programs."""
SOURCE_FILE = re.compile(r"`((?:capbench|plugins|tasks|leaderboard|tests|docs|measure|engine|report|cli)/[\w/.-]*)`")


class Block(NamedTuple):
    """A fenced code block of a page."""

    language: str
    title: str | None
    body: str


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    return [Block(m["language"], m["title"], m["body"]) for m in BLOCK.finditer(page(name))]


def hook(name: str) -> ModuleType:
    """An mkdocs hook, imported from docs/hooks."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def reference() -> ModuleType:
    """The hook that generates the command reference."""
    return hook("cli_reference")


@pytest.mark.slow
def test_the_guide_leads_from_an_empty_folder_to_a_leaderboard(
    capbench, installed, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    titles = [block.title for block in blocks("plugin-guide") if block.title]
    outputs = []
    for block in blocks("plugin-guide"):
        if block.title:
            (folder / block.title).write_text(block.body)
            continue
        assert block.language == "sh", "a block is a file with a title, or commands"
        for line in block.body.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if program == "capbench":
                done = capbench(*arguments)
                assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
                outputs.append(done.out)
            elif program == "cp":
                shutil.copy(*arguments)
            else:
                assert (program, arguments[:2]) == ("pip", ["install", "-e"])
                installed(folder / arguments[-1])
            for title in titles:  # a new process would not have them imported
                sys.modules.pop(title.removesuffix(".py"), None)
    assert "qk_norm" in (folder / "board" / "site" / "index.html").read_text()
    board = (folder / "board" / "README.md").read_text()
    assert {"qk_norm", "mha"} <= set(re.findall(r"\w+", board))
    listed = capbench("plugins").out
    assert "qk_norm" in listed
    assert "qk-norm" in listed
    assert any("my.head_per_edge" in text and "[derived]" in text for text in outputs)
    sys.modules.pop("qk_norm", None)


LAYERS = [block for block in blocks("layers") if block.title]


@pytest.mark.parametrize("block", LAYERS, ids=lambda block: block.title)
def test_a_layer_takes_at_most_20_lines_of_its_authors(block: Block) -> None:
    """Lines of code: imports, docstrings and the hook are the same for everyone."""
    code, _, _ = block.body.partition("@hookimpl")
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("from ", "import ", '"""'))]) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("block", LAYERS, ids=lambda block: block.title)
def test_every_layer_keeps_the_contract_and_is_measured(
    block: Block, capbench, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / block.title).write_text(block.body)
    lines = [line for each in blocks("layers") if each.language == "sh" for line in each.body.splitlines()]
    own = [line for line in lines if f"./{block.title} " in line]
    assert len(own) >= 2
    for line in own:
        _, *arguments = shlex.split(line)
        done = capbench(*arguments)  # a fallback to single models would be an error here
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
    sys.modules.pop(block.title.removesuffix(".py"), None)


def test_the_readme_lists_every_architecture_under_its_family() -> None:
    rows = re.findall(r"^\| (\w+) \| (`\w+`(?: `\w+`)*) \|$", page("../README"), re.MULTILINE)
    listed = {name: family for family, names in rows for name in re.findall(r"\w+", names)}
    own = {name: p.cls.family for name, p in load_registry().architectures.items()}
    assert listed == {name: family for name, family in own.items() if name != "bilinear"}, "but not an old name"


def test_the_page_about_layers_has_every_field_of_a_mixer() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page("layers"), re.MULTILINE))
    assert rows == {
        name: f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        for name, field in Mixer.model_fields.items()
    }


def test_the_examples_of_the_python_api_run(untrained, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    session = ModuleType("api_session")
    monkeypatch.setitem(sys.modules, session.__name__, session)
    names = vars(session)
    for block in blocks("python-api"):
        exec(compile(block.body, "python-api.md", "exec"), names)
    assert (tmp_path / "curve.svg").exists()
    assert (tmp_path / "sizes.svg").exists()
    message = re.search(r"print\(error\) +# (.*)", page("python-api"))
    assert message is not None
    assert message[1] in capsys.readouterr().out


def test_the_cells_of_the_notebook_run(untrained, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module without a file, as a kernel runs them."""
    session = ModuleType("notebook_session")
    monkeypatch.setitem(sys.modules, session.__name__, session)
    cells = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs are not committed"
            exec(compile("".join(cell["source"]), "<cell>", "exec"), vars(session))
    assert len(vars(session)["wide"]) == 4
    assert vars(session)["mine"].result.architecture.params["init_scale"] == 0.3
    assert len(vars(session)["study"].differences) == 3


def test_every_hook_has_a_heading_equal_to_its_signature() -> None:
    headings = re.findall(r"^## `(capbench_\w+.*)`$", page("hooks"), re.MULTILINE)
    specified = [
        f"{hook}{inspect.signature(getattr(capbench.contract.hookspecs, hook))}".replace("'", "").replace('"', "")
        for hook in HOOKS
    ]
    assert headings == specified
    for hook in HOOKS:
        assert inspect.getdoc(getattr(capbench.contract.hookspecs, hook)).rstrip(".") in page("hooks")


@pytest.mark.parametrize(
    "cls",
    [Plugin, Task, Architecture, Mixer, PairScorer, Bound, ExactBound, Solver, GradientSolver, ConstructiveSolver],
)
def test_every_name_of_the_contract_is_explained_and_marked_must_or_may(cls: type) -> None:
    pydantic_names = {*vars(BaseModel), "model_post_init", *cls.model_fields}  # the page about layers has the fields
    own = {n for n in {*vars(cls), *cls.__annotations__} if not n.startswith("_") and n not in pydantic_names}
    assert own
    rows = dict(re.findall(r"^\| (?:must|may) \| `((\w+)[^`]*)`", page("hooks"), re.MULTILINE))
    assert own <= set(rows.values()), own - set(rows.values())
    required = re.findall(r"^\| must \| `(\w+)", page("hooks"), re.MULTILINE)
    assert set(getattr(cls, "__abstractmethods__", ())) & set(vars(cls)) <= set(required)


def fields_of(document: type) -> Iterator[str]:
    """Dotted names of all fields of a document, level by level; a part that occurs again is not expanded again."""
    seen, queue = {document}, [("", document)]
    while queue:
        prefix, model = queue.pop(0)
        for name, annotation in _annotations(model).items():
            yield f"{prefix}{name}"
            many = "[]" if "tuple" in str(annotation) else ""
            parts = [
                t for t in _types(annotation) if isinstance(t, type) and (issubclass(t, BaseModel) or is_dataclass(t))
            ]
            queue.extend((f"{prefix}{name}{many}.", part) for part in parts if part not in seen)
            seen.update(parts)


def _annotations(model: type) -> dict[str, object]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in fields(model)}


def _types(annotation: object) -> Iterator[object]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types(inner)


def test_every_field_of_the_result_document_is_explained_and_no_other() -> None:
    _, _, document = page("reading-a-result").partition("## The document")
    explained = re.findall(r"^\| `([^`]+)` \|", document, re.MULTILINE)
    assert sorted(fields_of(Result)) == sorted(explained)


def test_every_label_of_the_text_is_explained() -> None:
    text, _, _ = page("reading-a-result").partition("## The document")
    explained = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    source = inspect.getsource(result_text.answer_rows) + inspect.getsource(result_text._capacity_label)
    labels = re.findall(r'\("([\w* ]+)", (?!")', source) + re.findall(r'": "([\w ]+)"', source)
    assert {"capacity", "facts held", "interval", "D_K*"} <= set(labels)
    assert set(labels) == explained


def test_the_sample_output_of_the_readme_has_the_labels_that_the_program_prints() -> None:
    sample = re.search(r"^capacity .*?\n\n", page("../README"), re.DOTALL | re.MULTILINE)
    assert sample is not None
    shown = [line[:15].rstrip() for line in sample[0].splitlines() if line]
    assert shown == ["capacity", "interval", "criterion", "parameters", "bits", "learning rate", "trials", "method"]
    source = inspect.getsource(result_text)
    for phrase in (" held most; working (at least half as often): ", "; tried: ", ", met by half of the trials"):
        assert phrase in source
        assert phrase in sample[0]


@pytest.mark.parametrize("name", ["../README", "reading-a-result"])
def test_the_sample_output_of_a_page_is_that_of_the_tutorial(name: str) -> None:
    text, sample = page(name), first_output(page("tutorial"))
    assert text == with_output(text, sample)
    assert sample in text


@pytest.mark.parametrize("name", ["tutorial", "gallery"])
def test_every_picture_of_a_page_with_commands_is_written_by_one_of_them(name: str) -> None:
    """`make tutorial` would leave a picture without a command as it was."""
    for picture in PICTURE.findall(page(name)):
        assert (DOCS / "figures" / picture).exists()
        assert any(f"--plot {picture}" in line for line in commands(page(name)))


@pytest.mark.parametrize("name", ["tutorial", "gallery"])
def test_the_commands_of_a_page_work_in_order_from_an_empty_folder(
    name: str, capbench, untrained, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(words: list[str]) -> str:
        for title in titles:  # a new process would not have them imported
            sys.modules.pop(title, None)
        done = capbench(*words[1:])
        assert done.code == 0, f"{words}\n{done.out}\n{done.err}"
        return str(done.out)

    titles = [Path(block.title).stem for block in blocks(name) if block.title]
    text = written(page(name), folder, run)
    assert commands(text) == commands(page(name))
    for picture in PICTURE.findall(text):
        assert (folder / picture).exists(), picture
    if name == "tutorial":
        assert "qk_norm" in (folder / "board" / "README.md").read_text()
        assert "qk_norm / mha" in text
    for title in titles:
        sys.modules.pop(title, None)


EXECUTED_ELSEWHERE = {
    "plugin-guide": "test_the_guide_leads_from_an_empty_folder_to_a_leaderboard",
    "layers": "test_every_layer_keeps_the_contract_and_is_measured",
    "scaling": "test_the_slurm_scripts_train_each_part_once_and_write_all_records_from_the_merged_store",
}
"""Pages whose commands other tests execute."""
NOT_EXECUTED = ("--all", "reproduce dana2025 ")
"""Commands that take hours even if nothing is trained; they are parsed."""
WITH_COMMANDS = ("../README", *(name for name in PAGES if name not in {*EXECUTED_ELSEWHERE, "tutorial", "gallery"}))


def shell_lines(name: str) -> list[str]:
    """The command lines of capbench in the shell blocks and indented blocks of a page."""
    lines = [line for block in blocks(name) if block.language == "sh" for line in block.body.splitlines()]
    lines += re.findall(r"^ {4}(capbench .*)$", page(name), re.MULTILINE)
    return [line for line in lines if line.startswith("capbench ")]


@pytest.mark.parametrize("name", [name for name in WITH_COMMANDS if shell_lines(name)])
def test_every_command_line_of_a_page_works(
    name: str, capbench, untrained, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    plugin = page("../README").partition("```python\n")[2].partition("```")[0]
    (folder / "one_matrix.py").write_text(plugin)
    first = json.loads(capbench("run", "--task", "rgr", "--arch", "mha", "--preset", "smoke", "--json").out)
    for line in shell_lines(name):
        words = [first["run_id"] if word == "RUN" else word for word in shlex.split(line, comments=True)[1:]]
        if any(part in f"{line} " for part in NOT_EXECUTED):
            words.append("--help")
        done = capbench(*words)
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
        sys.modules.pop("one_matrix", None)


def test_every_other_page_with_commands_has_a_test_that_exists() -> None:
    assert set(EXECUTED_ELSEWHERE.values()) <= globals().keys()


def test_every_way_a_trial_can_end_is_explained() -> None:
    for name in ("measuring", "reading-a-result"):
        assert all(f"`{status.value}`" in page(name) for status in TrialStatus)


def test_the_theory_page_lists_every_registered_bound_with_its_kind_pedigree_and_paper() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` (\|.*)$", page("theory"), re.MULTILINE))
    bounds = {name: provided.cls for name, provided in load_registry().bounds.items()}
    assert set(rows) == set(bounds)
    for name, bound in bounds.items():
        _, kind, _, source, _ = re.split(r"\s*\|\s*", rows[name])
        assert kind == bound.kind.value
        assert source.startswith(f"[{bound.pedigree.value}]")
        assert set(re.findall(r"\d{4}\.\d{5}", source)) <= set(re.findall(r"\d{4}\.\d{5}", bound.citation))
        assert re.search(r"\d{4}\.\d{5}|doi 10\.\d{4}/", source)


def test_every_task_has_a_section_on_the_theory_page() -> None:
    headings = set(re.findall(r"^## `(\w+)`$", page("theory"), re.MULTILINE))
    assert headings == {name for name, p in load_registry().tasks.items() if p.provenance.distribution == "capbench"}


def test_the_method_page_quotes_the_constants_of_the_code() -> None:
    from capbench.engine import evaluation, train
    from capbench.measure import matching
    from capbench.measure.estimate import posterior as curve
    from capbench.measure.estimate import summary
    from capbench_leaderboard.ranking import posterior

    text = page("measuring")
    for phrase in (
        f"every {train.CHECK_EVERY} steps",
        f"in {evaluation.PATIENCE:.0%} of all steps".replace("%", " %"),
        f"by {100 * evaluation.BETTER_BY:g} % of the threshold",
        f"within {100 * evaluation.NEARLY:g} % of the threshold",
        f"centred at {curve.TYPICAL_SCALE:g}",
        f"lapses (0 to {curve.LAPSES[-1]:g}; 0 has a prior weight of {curve.LAPSE_PRIOR[0]:g})",
        f"(shortfall / 0.1)^{curve.POWER:g}",
        f"Shortfalls beyond {curve.FAR:g} count as equal",
        f"one grid of {search.POINTS_PER_OCTAVE} values per octave",
        f"up to {search.END_SEEDS} seeds must agree",
        f"more than {100 * summary.FULL_SHARE:g} % are held",
        f"within {100 * matching.TOLERANCE:g} % of a count",
        f"{posterior.MAX_DRAWS:,} joint draws",
        f"hold at once in {100 * posterior.RANK_CONFIDENCE:g} % of the draws",
    ):
        assert phrase in " ".join(text.split()), phrase


@pytest.mark.slow
def test_the_slurm_scripts_train_each_part_once_and_write_all_records_from_the_merged_store(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.toml").write_text(
        'name = "tiny"\nversion = 1\npreset = "smoke"\ntasks = ["triples"]\narchitectures = ["mha", "mlp"]\n'
        'tiers = [400]\nseeds = 1\nbudget = 3\nci_width = 0.5\n[[rules]]\narchitectures = ["mha"]\n'
        'set = ["arch.d_model=8"]\n'
    )
    scripts = {block.title: block.body.replace("suite paper", "suite ./tiny.toml") for block in blocks("scaling")}
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")

    def run(script: str) -> str:
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    for part in ("1", "2"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", part)
        assert "[1/1] triples × " in run(scripts["capbench.sbatch"])
    output = run(scripts["merge.sh"])
    assert output.count("1 new run") == 2
    assert output.count("(stored)") == 2, "the merged store has every trial"
    assert len(list((tmp_path / "records").rglob("m*-*.json"))) == 2


def test_the_scaling_page_quotes_the_constants_of_the_code() -> None:
    from capbench.executors import in_flight
    from capbench.executors.ray import cluster, worker

    text = " ".join(page("scaling").split())
    assert f"after {in_flight.MOST_LOSSES} losses" in text
    assert {2: "every two seconds"}[worker.REPORT_SECONDS] in text
    assert {60: "after a minute the run ends"}[cluster.EMPTY_SECONDS] in text


@pytest.mark.parametrize("name", [*PAGES, "../README"])
def test_no_page_names_a_command_or_an_option_that_does_not_exist(name: str, reference) -> None:
    import click

    from capbench.cli.main import cli

    contexts = list(reference.contexts(click.Context(cli, info_name="capbench")))
    known = {flag for c in contexts for p in c.command.get_params(c) for flag in (*p.opts, *p.secondary_opts)}
    assert set(OPTION.findall(OTHER_PROGRAMS.sub("", page(name)))) <= known
    paths = {context.command_path for context in contexts}
    lines = [line for block in blocks(name) if block.language == "sh" for line in block.body.splitlines()]
    lines += re.findall(r"^ {4}(capbench .*)$", page(name), re.MULTILINE)
    for text in [*lines, *re.findall(r"`([^`\n]+)`", page(name))]:
        command = re.match(r"capbench (?:--[\w-]+ \S+ )*([a-z][\w-]*)", text)
        assert command is None or f"capbench {command[1]}" in paths, text


def test_every_source_file_that_a_page_names_exists() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / f"{name}.md" for name in PAGES)]:
        for named in SOURCE_FILE.findall(path.read_text(encoding="utf-8")):
            assert (ROOT / named).exists() or (ROOT / "capbench" / named).exists(), f"{path.name}: {named}"


def test_the_map_has_every_folder_of_the_core_and_the_layers_of_the_linter() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "capbench").glob("*/__init__.py")}
    assert folders == set(re.findall(r"^\| `capbench/(\w+)` \|", text, re.MULTILINE))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert " → ".join(layers).replace("capbench.", "") in text


def test_a_page_that_a_command_writes_is_added_to_the_navigation(tmp_path) -> None:
    for made in ("index.md", "reliability.md", "reproductions/rgr.md", "example-plugin/README.md"):
        (tmp_path / made).parent.mkdir(exist_ok=True)
        (tmp_path / made).touch()
    (tmp_path / "reproductions" / "rgr.md").write_text("<!-- written -->\n\n# Graphs again\n")
    config = SimpleNamespace(docs_dir=str(tmp_path), nav=[{"Start": "index.md"}])
    found = hook("written_pages").on_config(config).nav
    written_pages = [{"Reliability": "reliability.md"}, {"Graphs again": "reproductions/rgr.md"}]
    assert found == [{"Start": "index.md"}, {"Results": written_pages}]


def test_the_reference_has_every_command_and_option(reference) -> None:
    text = reference.reference()
    for heading in ("## capbench\n", "### capbench run\n", "### capbench check\n", "#### capbench leaderboard build\n"):
        assert heading in text
    for option in ("--minimize PARAM", "--ci-width SHARE", "--plugin FILE.py", "--strict-plugins"):
        assert option in text


def test_every_field_of_a_file_is_in_the_reference_with_its_meaning() -> None:
    files = hook("file_reference")
    for name, model in files.MODELS.items():
        rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.*) \|$", files.field_table(name), re.MULTILINE))
        assert rows.keys() == model.model_fields.keys()
        assert all(rows.values()), [field for field, words in rows.items() if not words]
        assert f"<!-- fields: {name} -->" in page("files")


def test_the_files_on_the_page_about_files_can_be_used(capbench, untrained, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("files"):
        (tmp_path / str(block.title)).write_text(block.body)
    assert capbench("sweep", "heads.toml").code == 0
    assert capbench("suite", "pairs.toml", "--out", "records").code == 0


def test_pages_contain_no_local_path_and_fetch_nothing() -> None:
    for name in PAGES:
        assert not re.search(r"/(?:home|work|tmp|root)/", page(name)), name
        assert not re.search(r"!\[[^\]]*\]\(http", page(name)), name


def test_the_site_builds_in_strict_mode_and_needs_no_network(tmp_path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("mkdocs-material is not installed; CI builds the site")
        pytest.skip("mkdocs-material is not installed")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in PAGES:
        html = (site / f"{name}.html").read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//", html), name
        assert not re.search(r"<link[^>]+rel=\"(?:stylesheet|preconnect|icon)\"[^>]+href=\"(?:https?:)?//", html), name
    assert "--trial-timeout" in (site / "cli.html").read_text(encoding="utf-8")
    assert (site / "search" / "search_index.js").exists(), "the search works in a folder"
    assert not (site / "example-plugin").exists()
    assert "leaderboard.html" in (site / "index.html").read_text(encoding="utf-8"), "it is in the navigation"
    records = list((ROOT / "leaderboard" / "records").glob("*/*/*.json"))
    assert len(list((site / "leaderboard" / "records").glob("*.html"))) == len(records) > 0
    assert (site / "leaderboard" / "charts" / "overview.svg").exists()


@pytest.mark.parametrize("folder", ["docs", "docs/figures", "docs/reproductions"])
def test_every_chart_of_the_site_follows_the_readers_choice_of_a_dark_page(folder: str) -> None:
    charts = [path for path in (ROOT / folder).glob("*.svg") if path.name != "architecture.svg"]
    assert charts
    for chart in charts:
        text = chart.read_text(encoding="utf-8")
        assert f"<style>{DARK_STYLE}</style>" in text, chart.name
        assert not re.search(r'<text[^>]*fill="#000"[^>]*stroke=', text), "a number on a colour is no label"


def test_the_reference_to_cite_is_that_of_the_citation_file() -> None:
    stated = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    title, version = (re.search(rf'^{field}: "?([^"\n]+)"?$', stated, re.MULTILINE) for field in ("title", "version"))
    assert title is not None
    assert version is not None
    assert f"title = {{{title[1]}}}" in page("citation")
    assert f"version = {{{version[1]}}}" in page("citation")
    assert version[1] == capbench.__version__
