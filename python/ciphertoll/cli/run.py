"""`ciphertoll run`: from options to a result folder and its report."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ciphertoll.cli import token
from ciphertoll.cli.options import choices
from ciphertoll.cli.progress import Progress, duration
from ciphertoll.cli.show import page_of, print_result, write
from ciphertoll.errors import SpecError
from ciphertoll.model import NS, Spec, Trial
from ciphertoll.plan import expected_seconds, plan
from ciphertoll.spec import Offer, build, lacks, measured_ns, read

if TYPE_CHECKING:
    from ciphertoll.execute import Remote, Sense
    from ciphertoll.store import Results

_PAGE = "report.html"
_JUDGEMENT = "judgement.json"
_INTERRUPTED = 130


def run(arguments: argparse.Namespace, sense: Sense | None = None) -> int:
    """Measure what was asked for, save it, report it.

    sense   makes the sensors of a trial; None: those of this machine.
    """
    from ciphertoll import engine

    offer = engine.channels()
    results, trials = _resumed(arguments, offer) if arguments.resume else _begun(arguments, offer)
    peer = token.read(Path(results.spec.peer), results.spec.peer_host) if results.spec.peer else None
    progress = Progress(sys.stderr, blocks=results.spec.blocks, quiet=arguments.quiet)
    _announce(progress, results, trials)
    _land_unsupported(results, trials, offer)
    try:
        _measure(results, trials, progress, peer, sense)
    except KeyboardInterrupt:
        progress.close()
        landed = len(results.trials)
        hint = f"`ciphertoll run --resume {results.path}` goes on"
        sys.stderr.write(f"interrupted: {landed} trials are saved in {results.path}\n  hint: {hint}\n")
        return _INTERRUPTED
    return _report(arguments, results, progress)


def _measure(
    results: Results, trials: Sequence[Trial], progress: Progress, peer: Remote | None, sense: Sense | None
) -> None:
    from ciphertoll.execute import execute

    try:
        execute(results, trials, progress=progress, peer=peer, sense=sense)
    finally:
        progress.close()


def _begun(arguments: argparse.Namespace, offer: Offer) -> tuple[Results, list[Trial]]:
    """A new result folder. What is wrong with the spec is said before anything is written."""
    from ciphertoll import store
    from ciphertoll.cli.provenance import provenance

    spec = _spec(arguments, offer)
    trials = plan(spec)
    if spec.peer:
        token.read(Path(spec.peer), spec.peer_host)
    _refuse_useless(spec, offer)
    _refuse_unusable_workload(spec)
    results = store.create(_out(arguments, spec), spec, provenance(arguments.argv, spec.seed))
    results.keep_plan(trials)
    return results, trials


def _resumed(arguments: argparse.Namespace, offer: Offer) -> tuple[Results, list[Trial]]:
    """A result folder to go on with. Options may be repeated, but must not change the spec."""
    from ciphertoll.store import Results

    path = Path(arguments.resume)
    if arguments.out:
        raise SpecError("--out and --resume exclude each other", at="--out", hint="--resume names the result folder")
    spec = Results.open(path).spec
    if arguments.spec or choices(arguments):
        spec = _spec(arguments, offer)
    results = Results.resume(path, spec)
    return results, plan(results.spec)


def _spec(arguments: argparse.Namespace, offer: Offer) -> Spec:
    layers = [choices(arguments)]
    if arguments.spec:
        layers.insert(0, read(Path(arguments.spec)))
    return build(*layers, offer=offer)


def _out(arguments: argparse.Namespace, spec: Spec) -> Path:
    if arguments.out:
        return Path(arguments.out)
    name = re.sub(r"[^\w.-]+", "-", spec.name).strip("-.") or "spec"
    return Path("results") / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}"


def _refuse_useless(spec: Spec, offer: Offer) -> None:
    """A run in which nothing that was asked for can be measured is not worth its time."""
    secured = {cell.channel for cell in spec.cells if cell.channel is not None and cell.channel.security is not None}
    reasons = [lacks(channel, offer) for channel in secured]
    if reasons and all(reasons):
        raise SpecError(str(reasons[0]), hint="`ciphertoll channels` lists what it can do")


def _refuse_unusable_workload(spec: Spec) -> None:
    """What can be seen of a workload without starting it: a missing file, an unknown name."""
    from ciphertoll.model import NoWorkload
    from ciphertoll.workloads.resolve import resolve

    for workload in dict.fromkeys(cell.workload for cell in spec.cells):
        if not isinstance(workload, NoWorkload):
            resolve(workload)


def _announce(progress: Progress, results: Results, trials: Sequence[Trial]) -> None:
    """How long it will take, and where it goes."""
    spec = results.spec
    done = {(trial.block, trial.order) for trial in results.trials}
    left = [trial for trial in trials if (trial.block, trial.order) not in done]
    progress.say(
        f"{spec.name}: {len(spec.cells)} cells in {spec.blocks} blocks, {len(left)} of {len(trials)} trials to run, "
        f"{duration(measured_ns(spec) / NS)} of measuring in all"
    )
    progress.say(f"takes about {duration(expected_seconds(left))}; results go to {results.path}")


def _land_unsupported(results: Results, trials: Sequence[Trial], offer: Offer) -> None:
    """What this build cannot do is in the results with its reason, and takes no time."""
    landed = {trial.id for trial in results.trials}
    for trial in trials:
        reason = lacks(trial.cell.channel, offer) if trial.cell.channel is not None else None
        if reason and trial.id not in landed:
            results.land(replace(trial, status="unsupported", reasons=(reason,)), None, None, [])


def _report(arguments: argparse.Namespace, results: Results, progress: Progress) -> int:
    from ciphertoll.judge import judge
    from ciphertoll.store import Results

    judgement = judge(Results.open(results.path))
    page = results.path / _PAGE
    write(results.path / _JUDGEMENT, judgement.to_json())
    write(page, page_of(judgement))
    code = print_result(judgement, arguments)
    progress.say(f"the page is {page}; every sample is in {results.path}")
    return code
