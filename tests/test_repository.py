"""Budgets, versions, links and paths: what no tool of either language checks for the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

import ciphertoll

ROOT = Path(__file__).resolve().parent.parent
FILE_BUDGET = 500
# Foreign code and system calls that no safe crate offers.
MAY_BE_UNSAFE = (
    "crates/channel/src/dtls.rs",
    "crates/channel/src/dtls/",
    "crates/engine/src/emulate.rs",
    "crates/engine/src/trace.rs",
)


def tracked(*suffixes: str) -> list[Path]:
    """The files of the repository with one of these endings; all without any."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return sorted(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_tests(source: str) -> list[str]:
    """The lines of a Rust file before its test module."""
    return re.split(r"^#\[cfg\(test\)\]$", source, maxsplit=1, flags=re.MULTILINE)[0].splitlines()


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts or path.stem == "tests"


def test_no_source_file_is_longer_than_its_budget() -> None:
    lengths = {
        shown(path): len(without_tests(path.read_text()) if path.suffix == ".rs" else path.read_text().splitlines())
        for path in tracked(".py", ".rs")
        if not is_test(path)
    }
    assert {name: length for name, length in lengths.items() if length > FILE_BUDGET} == {}


def test_unsafe_code_is_only_where_foreign_code_is_called() -> None:
    unsafe = re.compile(r"\bunsafe\s*(\{|(fn|impl|trait|extern)\b)|(allow|expect)\(unsafe_code")
    found = [
        shown(path)
        for path in tracked(".rs")
        if not shown(path).startswith(MAY_BE_UNSAFE) and unsafe.search(code_only(path.read_text()))
    ]
    assert found == []


def test_every_unsafe_block_says_why_it_is_safe() -> None:
    missing = []
    for path in tracked(".rs"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if re.search(r"\bunsafe\s*(\{|impl\b)", line.split("//")[0]):
                above = "\n".join(lines[max(0, number - 6) : number + 2])
                if "SAFETY:" not in above:
                    missing.append(f"{shown(path)}:{number + 1}")
    assert missing == []


def code_only(source: str) -> str:
    return re.sub(r"//.*", "", source)


def test_the_versions_agree() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    engine = tomllib.loads((ROOT / "packaging/engine/pyproject.toml").read_text())["project"]
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    ours = {crate["name"]: crate["version"] for crate in lock if crate["name"].startswith("ciphertoll-")}

    assert ciphertoll.__version__ == workspace
    assert f"ciphertoll-engine == {workspace}" in project["dependencies"]
    assert engine.get("version", workspace) == workspace
    assert set(ours.values()) == {workspace}
    assert f"## [{workspace}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_crate_takes_its_version_and_lints_from_the_workspace() -> None:
    for path in (ROOT / "crates").glob("*/Cargo.toml"):
        crate = tomllib.loads(path.read_text())
        assert crate["package"]["version"] == {"workspace": True}, shown(path)
        assert crate["lints"] == {"workspace": True}, shown(path)


def test_the_readme_says_how_to_run_and_test() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    text = readme.read_text()
    assert "make run" in text
    assert "make test" in text


def anchors(text: str) -> set[str]:
    """The fragments that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+\s+(.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def links(text: str) -> list[str]:
    """The targets of the links and images of a page, without those in code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [*re.findall(r"\]\(\s*<?([^)\s>]+)", prose), *re.findall(r"^\[[^\]]+\]:\s*(\S+)", prose, flags=re.MULTILINE)]


def test_every_link_in_the_docs_leads_somewhere() -> None:
    broken = []
    for page in tracked(".md"):
        for link in links(page.read_text()):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, fragment = unquote(link).partition("#")
            target = (page.parent / name).resolve() if name else page
            found = target.exists() and target.is_relative_to(ROOT)
            if not found or (fragment and target.suffix == ".md" and fragment not in anchors(target.read_text())):
                broken.append(f"{shown(page)}: {link}")
    assert broken == []


def test_no_path_of_somebodys_machine_is_written_down() -> None:
    home = re.compile(rb"(?<![\w.])(/(home/[a-z]|Users/[A-Za-z]|root/)|C:\\Users)")
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content[:8000] and path != Path(__file__) and home.search(content):
            found.append(shown(path))
    assert found == []


def test_nothing_is_left_to_be_written() -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX)\b|^//! (To be written|x)\.?$", flags=re.MULTILINE)
    sources = (path for path in tracked(".py", ".rs", ".md", ".toml") if path != Path(__file__))
    assert [shown(path) for path in sources if left.search(path.read_text())] == []
