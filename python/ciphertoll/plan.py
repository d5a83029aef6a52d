"""From a Spec to its Trials: randomised complete blocks.

Every block holds every cell once, in an order of its own, so that whatever drifts (heat, clocks, other programs) meets
all cells alike and comparisons can be made inside blocks. The planner sees no results.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from ciphertoll.errors import SpecError
from ciphertoll.model import NS, Spec, Trial

# Starting and stopping processes around the load; `overhead_ns` in the facts of a trial is what it really took.
OVERHEAD_S = 1.0


def plan(spec: Spec) -> list[Trial]:
    """The trials of `spec` in the order to run them. The same spec gives the same plan.

    A cell named in `spec.twins` stands in each block twice; its second appearance is the twin.

    Raises SpecError for no cell, no block, a cell that is there twice, a twin that is no cell.
    """
    _check(spec)
    rng = random.Random(spec.seed)
    by_id = {cell.id: cell for cell in spec.cells}
    trials = []
    for block in range(spec.blocks):
        places = [*by_id, *spec.twins]
        rng.shuffle(places)
        seen: set[str] = set()
        for order, cell_id in enumerate(places):
            trials.append(Trial(by_id[cell_id], block, order, rng.getrandbits(32), twin=cell_id in seen))
            seen.add(cell_id)
    return trials


def expected_seconds(trials: Iterable[Trial], overhead_s: float = OVERHEAD_S) -> float:
    """How long the trials take if none is repeated. overhead_s: per trial, beyond warm-up and measured time."""
    return sum((trial.cell.load.warm_up_ns + trial.cell.load.duration_ns) / NS + overhead_s for trial in trials)


def _check(spec: Spec) -> None:
    if not spec.cells:
        raise SpecError("the spec has no cell", hint="select at least one channel, or a workload alone")
    if spec.blocks < 1:
        raise SpecError(f"{spec.blocks} blocks are not enough", at="blocks", accepted=["1 or more"])
    twice = [cell_id for cell_id, count in Counter(cell.id for cell in spec.cells).items() if count > 1]
    if twice:
        raise SpecError(f"cell `{twice[0]}` is in the spec twice", hint="to measure the noise floor, name it as a twin")
    ids = [cell.id for cell in spec.cells]
    for position, twin in enumerate(spec.twins):
        if twin not in ids or twin in spec.twins[:position]:
            raise SpecError(f"twin `{twin}` is not a cell of the spec, or is named twice", at="twins", accepted=ids)
