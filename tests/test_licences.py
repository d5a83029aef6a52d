"""The crates under the engine have licences and sources that deny.toml allows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES: dict[str, Any] = tomllib.loads((ROOT / "deny.toml").read_text())
ALLOWED = frozenset(RULES["licenses"]["allow"])
EXCEPTIONS = {entry["crate"]: frozenset(entry["allow"]) for entry in RULES["licenses"]["exceptions"]}


@pytest.fixture(scope="module")
def crates() -> list[dict[str, Any]]:
    """Every crate of the workspace and under it, for all features and all targets."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not there to say which crates are used")
    command = ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    packages: list[dict[str, Any]] = json.loads(done.stdout)["packages"]
    return packages


def satisfied(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression can be met with the allowed licences alone."""
    # Crates from before SPDX expressions write `A/B` for `A OR B`. AND binds more closely than OR.
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression.replace(" WITH ", "+"))
    words = {"(": "(", ")": ")", "AND": "and", "OR": "or", "/": "or"}
    python = " ".join(words.get(token, str(token in allowed)) for token in tokens)
    return bool(eval(python, {"__builtins__": {}}))  # only brackets, and, or, True and False are left


@pytest.mark.parametrize(
    ("expression", "meets"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT/Apache-2.0", True),
        ("(MIT OR GPL-3.0-only) AND ISC", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
    ],
)
def test_an_expression_is_met_only_by_allowed_licences(expression: str, meets: bool) -> None:
    assert satisfied(expression, frozenset({"MIT", "Apache-2.0", "ISC"})) is meets


def test_every_crate_has_an_allowed_licence(crates: list[dict[str, Any]]) -> None:
    refused = {
        f"{crate['name']} {crate['version']}": crate["license"]
        for crate in crates
        if not satisfied(crate["license"] or "unlicensed", ALLOWED | EXCEPTIONS.get(crate["name"], frozenset()))
    }
    assert not refused


def test_only_wolfssl_may_be_copyleft() -> None:
    assert set(EXCEPTIONS) == {"wolfssl-sys"}
    assert not [name for name in ALLOWED if "GPL" in name]


def test_every_crate_comes_from_crates_io_or_this_repository(crates: list[dict[str, Any]]) -> None:
    known = {None, *(f"registry+{url}" for url in RULES["sources"]["allow-registry"])}
    assert not {crate["name"]: crate["source"] for crate in crates if crate["source"] not in known}
