"""Commands that only show: `report`, `doctor`, `channels`, `presets`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ciphertoll.cli.progress import duration
from ciphertoll.errors import EXIT_DONE, EXIT_MACHINE, EXIT_WORSE, MachineError
from ciphertoll.model import NS
from ciphertoll.spec import DESCRIPTIONS, Given, build, measured_ns

if TYPE_CHECKING:
    from ciphertoll.judge import Judgement


def report(arguments: argparse.Namespace) -> int:
    """Print what a result folder holds, and write its page if asked."""
    from ciphertoll.judge import judge
    from ciphertoll.store import Results

    judgement = judge(Results.open(Path(arguments.folder)))
    if arguments.html:
        write(Path(arguments.html), page_of(judgement))
    return print_result(judgement, arguments)


def print_result(judgement: Judgement, arguments: argparse.Namespace) -> int:
    """Print in the format that was asked for, and return the exit code."""
    from ciphertoll.report import text

    if arguments.json:
        sys.stdout.write(judgement.to_json())
    elif arguments.csv:
        sys.stdout.write(text.to_csv(judgement))
    else:
        text.print_to(sys.stdout, judgement)
    sys.stdout.flush()
    worse = any(verdict.decision == "worse" for verdict in judgement.verdicts)
    return EXIT_WORSE if arguments.gate and worse else EXIT_DONE


def page_of(judgement: Judgement) -> str:
    from ciphertoll.report import page

    return page.render(judgement)


def write(path: Path, text: str) -> None:
    """Raises MachineError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MachineError(f"`{path.name}` cannot be written: {error.strerror or error}", at=str(path)) from error


def doctor(arguments: argparse.Namespace) -> int:
    """Exit code 3 if the machine is not fit to measure now."""
    from ciphertoll import engine
    from ciphertoll.devices import doctor as devices

    findings = devices.examine(engine=engine.speeds)
    text = devices.to_json(findings) if arguments.json else devices.render_text(findings)
    sys.stdout.write(text.rstrip("\n") + "\n")
    return EXIT_MACHINE if findings.fit == "no" else EXIT_DONE


def channels(arguments: argparse.Namespace) -> int:
    from ciphertoll import engine

    rows = engine.channels()
    if arguments.json:
        sys.stdout.write(json.dumps({"channels": rows}) + "\n")
    else:
        sys.stdout.write("\n".join(_channel_lines(rows)) + "\n")
    return EXIT_DONE


def _channel_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """One paragraph per protocol, version and library."""
    lines = []
    kinds: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        kinds[tuple(row.get(key, "") for key in ("protocol", "version", "library"))].append(row)
    for (protocol, version, library), own in kinds.items():
        lines.append(f"{protocol}: {version} by {library}" if version else f"{protocol}: unprotected")
        for key, title in (("suite", "suites"), ("group", "groups"), ("certificate", "certificates")):
            values = list(dict.fromkeys(row[key] for row in own if key in row))
            if values:
                lines.append(f"  {title:<13}{', '.join(values)}")
    return lines


def presets(arguments: argparse.Namespace) -> int:
    from ciphertoll.plan import expected_seconds, plan

    rows = []
    for name, about in DESCRIPTIONS.items():
        spec = build({"preset": Given(name, "--preset", 2)})
        seconds = expected_seconds(plan(spec))
        rows.append({"name": name, "about": about, "measured_s": measured_ns(spec) / NS, "expected_s": seconds})
    if arguments.json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return EXIT_DONE
    for row in rows:
        measured, expected = (duration(float(str(row[key]))) for key in ("measured_s", "expected_s"))
        sys.stdout.write(f"{row['name']}: {row['about']}\n  measures for {measured}, takes about {expected}\n")
    return EXIT_DONE
