"""The project's own promises: one direction of imports, small files, pinned and equal environments.

Everything here reads the repository as text (or starts a fresh interpreter); no engine is run.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "inms_lab"
SOURCES = ("inms_lab", "widgets", "labs/lessons")
LABS = sorted(p for p in ROOT.glob("labs/**/*.ipynb") if ".ipynb_checkpoints" not in p.parts)

# Folders of inms_lab, and the folders that each may import besides itself. "words" are the modules
# at the top, which everybody may speak of; "front" are the two entrances there.
WORDS = {"errors", "config", "sizes", "shell", "places", "leases", "output", "reload"}
FRONT = {"__init__", "cli"}
DECIDES = {"words", "books", "decisions", "logs", "hindsight"}
COMPUTES = {"words", "kernels", "attention", "model"}
JOINS = DECIDES | COMPUTES | {"remote", "parameters", "serving", "publishing", "notebook"}
MEASURES = {"studies", "interference", "bench", "experiment"}
MAY_IMPORT: dict[str, set[str]] = {
    "words": set(),
    "books": {"words"},
    "decisions": {"words", "books"},
    "logs": {"words", "books", "decisions"},
    "hindsight": DECIDES,
    "kernels": {"words"},
    "attention": {"words", "kernels"},
    "model": COMPUTES,
    "remote": {"words"},
    "parameters": {"words", "model"},
    "serving": (DECIDES - {"hindsight"}) | COMPUTES,
    "publishing": (DECIDES - {"hindsight"}) | COMPUTES | {"serving"},
    "notebook": JOINS,
    "studies": (DECIDES - {"hindsight"}) | {"attention", "serving"},
    "interference": JOINS | {"studies"},
    "bench": JOINS | {"studies"},
    "experiment": JOINS | {"studies", "interference"},
    "terminal": JOINS | MEASURES,
    "front": JOINS | MEASURES | {"terminal"},
}
TENSOR_LIBRARIES = {"torch", "transformers", "tokenizers", "safetensors", "accelerate", "gguf"}
NO_TENSORS = DECIDES | {"remote"}
OPTIONAL = {"triton"}  # imported when it is asked for; a build of torch that can use it brings it


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def folder_of(name: str) -> str:
    """The folder of a dotted name below inms_lab; what the package re-exports is its front's."""
    first = name.split(".")[0]
    if first in MAY_IMPORT:
        return first
    return "words" if first in WORDS else "front"


def modules_of(package: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name below the package, file) for every source file."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        yield ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> Iterator[str]:
    """Absolute dotted names imported anywhere in the file, inside functions too."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level, package) if node.level else ""
            stem = ".".join(part for part in (base, node.module) if part)
            # `from inms_lab import plan` imports a module too, so the names count.
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def own_targets(path: Path) -> set[str]:
    """Folders of inms_lab that the file imports from."""
    parts = (name.split(".") for name in imports_of(path))
    return {folder_of([*p, "__init__"][1]) for p in parts if p[0] == "inms_lab"}


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


# --- layers ----------------------------------------------------------------------------------


def test_every_module_stands_in_a_folder_that_says_what_it_may_import() -> None:
    tops = {p.stem for p in PACKAGE.glob("*.py")}
    assert tops == WORDS | FRONT, f"into a folder: {sorted(tops ^ (WORDS | FRONT))}"
    folders = {p.name for p in PACKAGE.iterdir() if list(p.glob("*.py"))}
    assert folders == MAY_IMPORT.keys() - {"words", "front"}


def test_folders_form_no_circle() -> None:
    """What may be imported, followed to the end, never comes back."""
    left = {folder: targets - {folder} for folder, targets in MAY_IMPORT.items()}
    while left:
        free = {folder for folder, targets in left.items() if not targets & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {folder: targets for folder, targets in left.items() if folder not in free}


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in modules_of(PACKAGE):
        folder = folder_of(name)
        for target in own_targets(path) - MAY_IMPORT[folder] - {folder}:
            wrong.append(f"{path.relative_to(ROOT)} may not import from {target}")
    assert not wrong, "\n".join(wrong)


def test_the_folders_lead_nowhere_else() -> None:
    """A new folder's own file says what the folder is for: whoever imports it loads nothing."""
    for folder in DECIDES - {"words"}:
        tree = ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))
        assert len(tree.body) == 1
        assert ast.get_docstring(tree)


def test_deciding_modules_name_no_tensor_library() -> None:
    for name, path in modules_of(PACKAGE):
        if folder_of(name) in NO_TENSORS:
            assert not roots(path) & TENSOR_LIBRARIES, path


def test_the_engine_never_imports_the_widgets() -> None:
    """Nor the lessons. The command line may: it writes a page, or a copy for students."""
    for _, path in modules_of(PACKAGE):
        allowed = path.relative_to(PACKAGE).as_posix() in ("cli.py", "terminal/page.py")
        assert allowed or not roots(path) & {"inms_lessons", "inms_widgets", "widgets"}, path


def test_the_widgets_never_import_the_lessons() -> None:
    for path in (ROOT / "widgets").rglob("*.py"):
        assert "inms_lessons" not in roots(path), path


def test_the_deciding_part_loads_without_torch() -> None:
    names = sorted({n for n, _ in modules_of(PACKAGE) if folder_of(n) in NO_TENSORS})
    assert "books.ledger" in names
    code = (
        "import importlib, sys\n"
        "import inms_lab\n"
        "assert 'torch' not in sys.modules, 'inms_lab alone loads torch'\n"
        f"for name in {names}: importlib.import_module('inms_lab.' + name)\n"
        f"loaded = {TENSOR_LIBRARIES} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- size and documentation -------------------------------------------------------------------


def test_no_source_file_is_over_250_lines() -> None:
    files = [p for d in SOURCES for p in (ROOT / d).rglob("*")]
    for path in (p for p in files if p.suffix in {".py", ".js", ".css"}):
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        assert num_lines <= 250, f"{path.relative_to(ROOT)}: {num_lines} lines own two things"


def test_ledger_plan_and_pool_fit_in_500_lines() -> None:
    files = [PACKAGE / f"{name}.py" for name in ("books/ledger", "decisions/plan", "books/pool")]
    assert sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files) <= 500


def test_at_most_twelve_event_types_and_all_are_frozen() -> None:
    events = importlib.import_module("inms_lab.books.events")
    assert len(set(events.EVENT_TYPES)) == len(events.EVENT_TYPES) <= 12
    for event in events.EVENT_TYPES:
        assert event.__dataclass_params__.frozen, event
        assert "__slots__" in vars(event), event


def test_public_functions_and_classes_have_docstrings() -> None:
    bare = []
    stubs = ROOT / "labs/lessons/stubs"
    lessons = [path for path in (ROOT / "labs/lessons").rglob("*.py") if path.parent != stubs]
    for path in [*(path for _, path in modules_of(PACKAGE)), *lessons]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        public = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        bare += [f"{path.name}: {n.name}" for n in public if not ast.get_docstring(n)]
        if tree.body and not ast.get_docstring(tree):
            bare.append(f"{path.relative_to(ROOT)}: the module")
    assert not bare, "\n".join(bare)


# --- environments -----------------------------------------------------------------------------


def requirement_set(lines: list[str]) -> set[tuple[str, str]]:
    parsed = [Requirement(line) for line in lines]
    return {(canonicalize_name(r.name), str(r.specifier)) for r in parsed}


def test_environment_yml_equals_pyproject() -> None:
    project = pyproject()["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    listed = [line for line in pip if not line.startswith("-")]
    assert requirement_set(listed) == requirement_set(project["dependencies"])
    assert environment["name"] == project["name"]
    assert f"python{project['requires-python']}" in environment["dependencies"]
    assert {"-c constraints.txt", "-e ."} <= set(pip)


def test_constraints_are_exact_and_within_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in (line for line in lines if line and not line.startswith("#")):
        name, _, version = line.partition("==")
        assert version, f"not exact: {line}"
        assert "+" not in version, f"a local suffix would forbid other builds: {line}"
        assert canonicalize_name(name) not in pins, f"twice: {line}"
        pins[canonicalize_name(name)] = version
    project = pyproject()["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    for requirement in map(Requirement, wanted):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement.name} has no line in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


def test_every_imported_library_is_declared() -> None:
    declared = {
        canonicalize_name(Requirement(d).name) for d in pyproject()["project"]["dependencies"]
    }
    distributions = importlib.metadata.packages_distributions()
    own = {"inms_lab", "inms_lessons", "labs", "inms_widgets", "widgets"}
    for path in [p for d in SOURCES for p in (ROOT / d).rglob("*.py")]:
        for root in roots(path) - own - set(sys.stdlib_module_names):
            candidates = {canonicalize_name(d) for d in distributions.get(root, [root])}
            assert candidates & (declared | OPTIONAL), (
                f"{path.relative_to(ROOT)} imports undeclared {root}"
            )


def test_every_package_folder_is_installed() -> None:
    mapped = pyproject()["tool"]["setuptools"]["package-dir"]
    listed = {
        mapped.get(p, p.replace(".", "/")) for p in pyproject()["tool"]["setuptools"]["packages"]
    }
    inits = [p for d in SOURCES for p in (ROOT / d).rglob("__init__.py")]
    assert {p.parent.relative_to(ROOT).as_posix() for p in inits} <= listed


# --- committed text ---------------------------------------------------------------------------

MACHINE_PATH = re.compile(r"(?<![\w.}>-])/(?:home|root|work)/")
REGISTRY_HOST = re.compile(
    r"\b(?:py[p]i\.org|files\.python[h]osted\.org|registry\.npm[j]s\.org|(?:deb|security)\.deb[i]an\.org)\b"
)


def committed_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [p for name in listing.decode().split("\0") if name and (p := ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_committed_text_names_a_machine_path_or_a_registry_host() -> None:
    found = []
    for path in committed_files():
        content = path.read_bytes()
        if b"\0" in content:  # not text
            continue
        text = content.decode("utf-8")
        for match in [*MACHINE_PATH.finditer(text), *REGISTRY_HOST.finditer(text)]:
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    assert not found, "\n".join(found)


# --- notebooks --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LABS, ids=lambda p: p.name)
def test_notebook_obeys_the_guard_rails(path: Path) -> None:
    assert path.stat().st_size < 500_000, "over 500 kB"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert 0 < len(cells) <= 25, f"{len(cells)} code cells"
    for cell in cells:
        assert cell["execution_count"], f"not executed: {''.join(cell['source'])[:60]!r}"
    assert "widgets" not in notebook["metadata"], "widget state is saved"
    last = ast.parse("".join(cells[-1]["source"]))
    calls = [n.func for n in ast.walk(last) if isinstance(n, ast.Call)]
    assert any(isinstance(f, ast.Attribute) and f.attr == "assert_clean" for f in calls)
