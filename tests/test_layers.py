"""Who may import whom, what may be imported early, and which names say nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "ciphertoll"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module may import from lower lines, and a package from itself. Any other name has to be put on a line here.
LAYERS = (
    ("__init__", "errors", "metrics"),
    ("model",),
    ("spec", "stats", "store", "engine", "validity", "devices", "workloads"),
    ("plan", "execute", "judge"),
    ("report", "fleet", "web"),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# `python -m ciphertoll` is the command line and nothing else.
SAME_LINE = {("__main__", "cli")}

# `ciphertoll --help` takes at most 150 ms: these are imported inside the function that needs them.
HEAVY = {"cv2", "jinja2", "matplotlib", "numpy", "onnxruntime", "polars", "pynvml", "scipy"}

EMPTY_WORDS = {"manager", "helper", "util", "common", "handler", "factory", "scenario"}


def imports(tree: ast.AST, module: str, *, top_only: bool = False) -> Iterator[str]:
    """Every module that `module` imports, by absolute name; `from x import y` gives `x.y` for our own x."""
    for node in at_import(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module)
            if base.split(".")[0] == "ciphertoll":
                yield from (f"{base}.{alias.name}" for alias in node.names)
            else:
                yield base


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs when the module is imported: not what is inside functions or `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (inner for branch in child.orelse for inner in (branch, *at_import(branch)))
            continue
        yield child
        yield from at_import(child)


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The module that a `from` names, dots resolved; `module` is a package when it ends in `.__init__`."""
    if not node.level:
        return node.module or ""
    parent = module.split(".")[: -node.level]
    return ".".join([*parent, *([node.module] if node.module else [])])


def module_name(path: Path) -> str:
    """`ciphertoll.devices.__init__` for its file."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def part(module: str) -> str:
    """The name on a line of LAYERS to which a module of ours belongs."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "__init__"


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def forbidden(tree: ast.AST, module: str) -> list[str]:
    """The imports of `module` that do not go to a lower line."""
    own = part(module)
    wrong = []
    for target in imports(tree, module):
        if target.split(".")[0] != "ciphertoll":
            continue
        other = part(target)
        if other != own and (own, other) not in SAME_LINE and LEVEL[other] >= LEVEL[own]:
            wrong.append(f"{module} imports {target}")
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_has_a_line(path: Path) -> None:
    assert module_name(path).split(".")[1] in LEVEL, "put it on a line of LAYERS, here and in ARCHITECTURE.md"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_to_lower_lines_only(path: Path) -> None:
    assert forbidden(parse(path), module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("ciphertoll.model", "from ciphertoll.errors import SpecError", False),
        ("ciphertoll.model", "from . import errors", False),
        ("ciphertoll.errors", "from ciphertoll import model", True),
        ("ciphertoll.spec", "from .store import Store", True),
        ("ciphertoll.devices.gpu", "from .meter import Meter", False),
        ("ciphertoll.devices.gpu", "from ..workloads import base", True),
        ("ciphertoll.devices.gpu", "from ..model import Sample", False),
        ("ciphertoll.spec", "def f():\n    import ciphertoll.plan", True),
        ("ciphertoll.devices.__init__", "from .host import read", False),
        ("ciphertoll.devices.__init__", "from ..report import page", True),
        ("ciphertoll.spec", "import tomllib", False),
    ],
)
def test_the_rule_tells_lower_from_higher(module: str, line: str, wrong: bool) -> None:
    assert bool(forbidden(ast.parse(line), module)) is wrong


def imported_with(start: str) -> dict[str, ast.Module]:
    """The modules of ours that are imported when `start` is, by name."""
    files = {module_name(path): path for path in MODULES}
    found: dict[str, ast.Module] = {}
    waiting = [start, "ciphertoll.__init__"]
    while waiting:
        name = waiting.pop()
        if name in found or name not in files:
            continue
        found[name] = parse(files[name])
        for target in imports(found[name], name, top_only=True):
            parts = target.split(".")
            # Importing a.b.c runs a, a.b and a.b.c; the last part may be a name inside a module.
            for length in range(1, len(parts) + 1):
                prefix = ".".join(parts[:length])
                waiting += [prefix, f"{prefix}.__init__"]
    return found


def test_the_command_line_starts_without_heavy_libraries() -> None:
    early = [
        f"{name} imports {target}"
        for start in ("ciphertoll.__init__", "ciphertoll.cli")
        for name, tree in imported_with(start).items()
        for target in imports(tree, name, top_only=True)
        if target.split(".")[0] in HEAVY
    ]
    assert early == []


def test_an_import_inside_a_function_is_not_early() -> None:
    tree = ast.parse("import json\nif TYPE_CHECKING:\n    import numpy\ntry:\n    import cv2\nexcept OSError: ...\n"
                     "def f():\n    import polars\nclass C:\n    import scipy\n")  # fmt: skip
    assert set(imports(tree, "ciphertoll.cli", top_only=True)) == {"json", "cv2", "scipy"}


def words(name: str) -> set[str]:
    """`{"http", "server"}` for HttpServer, http_server and http-servers."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    found = re.findall(r"[a-z]+", spaced)
    return {*found, *(word.removesuffix("s") for word in found)}


def python_names() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name


def rust_names() -> Iterator[tuple[str, str]]:
    declared = re.compile(r"^\s*(?:pub(?:\([a-z]+\))?\s+)?(?:async |const |unsafe )*"
                          r"(?:fn|struct|enum|trait|type|mod|union)\s+(\w+)")  # fmt: skip
    for path in sorted((ROOT / "crates").rglob("*.rs")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := declared.match(line):
                yield f"{path.relative_to(ROOT)}:{number}", match[1]


def file_names() -> Iterator[tuple[str, str]]:
    for folder in (PACKAGE, ROOT / "crates"):
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)), path.stem


def test_no_name_is_empty_of_meaning() -> None:
    found = [
        f"{where}: {name}"
        for names in (file_names, python_names, rust_names)
        for where, name in names()
        if words(name) & EMPTY_WORDS
    ]
    assert found == []


def test_words_are_found_in_both_languages_spelling() -> None:
    assert words("JobManager") & EMPTY_WORDS
    assert words("net_utils") & EMPTY_WORDS
    assert not words("commonwealth_utilisation") & EMPTY_WORDS
