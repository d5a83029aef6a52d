"""Where, when and with what was measured. The environment and its secrets are not in it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import ciphertoll
from ciphertoll.metrics import METRICS_VERSION

_LIBRARIES = (
    *("numpy", "polars", "scipy", "onnxruntime", "onnxruntime-gpu", "opencv-python-headless"),
    *("ai-edge-litert", "nvidia-ml-py", "ultralytics"),
)


def provenance(argv: Sequence[str], seed: int) -> dict[str, Any]:
    """JSON values. Takes some 100 ms: it asks git, the engine and the machine."""
    from ciphertoll import engine
    from ciphertoll.devices import doctor

    return {
        "started_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command_line": ["ciphertoll", *argv],
        "seed": seed,
        "metrics_version": METRICS_VERSION,
        "versions": {"ciphertoll": ciphertoll.__version__, "python": sys.version.split()[0], **_libraries()},
        "engine": engine.version(),
        "machine": doctor.fingerprint(),
        "git": git_state(Path(ciphertoll.__file__).resolve().parents[2]),
    }


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of the checkout in `root`, and whether it was changed since; None if it is none."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "changed": bool(changed)}


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
