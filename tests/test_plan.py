"""The plan: complete blocks, fresh orders, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synthetic
from ciphertoll.errors import SpecError
from ciphertoll.model import Cell, NoWorkload, Spec
from ciphertoll.plan import expected_seconds, plan

CELLS = tuple(Cell(channel, synthetic.paced(seconds=10), NoWorkload()) for channel in synthetic.channels())
SPEC = Spec("plan", CELLS, blocks=4, seed=11, twins=(CELLS[2].id, CELLS[5].id))


def test_the_same_spec_gives_the_same_plan() -> None:
    assert plan(SPEC) == plan(SPEC)


def test_another_seed_gives_another_order() -> None:
    assert [trial.cell.id for trial in plan(SPEC)] != [trial.cell.id for trial in plan(replace(SPEC, seed=12))]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, len(CELLS)), blocks=st.integers(1, 6), seed=st.integers(0, 2**63), twins=st.data())
def test_every_block_holds_every_cell_once_and_every_twin_twice(
    n: int, blocks: int, seed: int, twins: st.DataObject
) -> None:
    cells = CELLS[:n]
    named = twins.draw(st.lists(st.sampled_from([cell.id for cell in cells]), unique=True))
    planned = plan(Spec("any", cells, blocks, seed, tuple(named)))
    assert len({trial.id for trial in planned}) == len(planned) == blocks * (n + len(named))
    for block in range(blocks):
        own = [trial for trial in planned if trial.block == block]
        assert [trial.order for trial in own] == list(range(len(own)))
        assert Counter(trial.cell.id for trial in own if not trial.twin) == Counter(cell.id for cell in cells)
        assert Counter(trial.cell.id for trial in own if trial.twin) == Counter(named)


def test_the_order_differs_between_blocks() -> None:
    orders = {tuple(trial.cell.id for trial in plan(SPEC) if trial.block == block) for block in range(SPEC.blocks)}
    assert len(orders) == SPEC.blocks


def test_every_cell_comes_first_about_equally_often() -> None:
    cells = CELLS[:5]
    first = Counter(trial.cell.id for trial in plan(Spec("long", cells, 1000, 3)) if trial.order == 0)
    assert all(140 < first[cell.id] < 260 for cell in cells)  # 200 expected, standard deviation 12.6


def test_a_twin_comes_after_its_original() -> None:
    for twin in (trial for trial in plan(SPEC) if trial.twin):
        original = next(
            trial
            for trial in plan(SPEC)
            if (trial.block, trial.cell.id, trial.twin) == (twin.block, twin.cell.id, False)
        )
        assert original.order < twin.order


def test_trials_have_seeds_of_their_own() -> None:
    assert len({trial.seed for trial in plan(SPEC)}) == len(plan(SPEC))


def test_trial_ids_sort_in_the_order_of_the_plan() -> None:
    ids = [trial.id for trial in plan(SPEC)]
    assert ids == sorted(ids)


def test_the_expected_time_counts_warm_up_load_and_overhead() -> None:
    assert expected_seconds(plan(SPEC)) == pytest.approx(4 * (15 + 2) * (2 + 10 + 1.0))
    assert expected_seconds(plan(SPEC), overhead_s=0.5) == pytest.approx(4 * 17 * 12.5)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (replace(SPEC, cells=()), "no cell"),
        (replace(SPEC, blocks=0), "0 blocks"),
        (replace(SPEC, cells=(*CELLS, CELLS[0])), "twice"),
        (replace(SPEC, twins=("f00",)), "twin `f00` is not a cell"),
        (replace(SPEC, twins=(CELLS[0].id, CELLS[0].id)), "named twice"),
    ],
)
def test_a_spec_that_cannot_be_planned_is_refused(wrong: Spec, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        plan(wrong)
