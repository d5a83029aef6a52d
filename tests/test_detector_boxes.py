"""Boxes out of numbers: decoding, suppression, and the way back to the frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciphertoll.workloads.boxes import decode, layout_of
from ciphertoll.workloads.picture import Picture


def overlap(a, b) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    both = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - shared
    return shared / both if both > 0 else 0.0


def raw_output(seed: int, classes: int, boxes: int) -> np.ndarray:
    """[1, 4 + classes, boxes] with many overlaps, some boxes beyond the edge, and scores on both sides of any limit."""
    random = np.random.default_rng(seed)
    centres = random.uniform(-40, 700, (2, boxes)) if seed % 2 else random.normal(300, 30, (2, boxes))
    sides = random.uniform(0, 200, (2, boxes))
    return np.concatenate([centres, sides, random.random((classes, boxes))])[None].astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    classes=st.integers(1, 5),
    boxes=st.integers(10, 120),
    limits=st.tuples(st.floats(0.05, 0.95), st.floats(0.1, 0.9)),
    frame=st.tuples(st.integers(1, 900), st.integers(1, 900)),
    stretch=st.booleans(),
)
def test_boxes_are_confident_apart_and_inside_the_frame(seed, classes, boxes, limits, frame, stretch):
    confidence, iou = limits
    found = decode(raw_output(seed, classes, boxes), "raw", confidence=confidence, iou=iou)
    assert (found.scores > confidence).all()
    assert (np.diff(found.scores) <= 0).all()
    for i, box in enumerate(found.corners):
        rivals = (j for j in range(i) if found.classes[j] == found.classes[i])
        assert all(overlap(box, found.corners[j]) <= iou + 1e-4 for j in rivals)
    picture = Picture((640, 640), "float32", channels_last=False, stretch=stretch)
    picture.fit(np.zeros((*frame, 3), np.uint8))
    corners = picture.to_frame(found.corners)
    assert (corners >= 0).all()
    assert (corners[:, 2:] >= corners[:, :2]).all()
    assert (corners <= [frame[1], frame[0]] * 2).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), confidence=st.floats(0.3, 0.9))
def test_a_higher_limit_keeps_exactly_the_boxes_above_it(seed, confidence):
    output = raw_output(seed, 3, 60)
    low = decode(output, "raw", confidence=0.2, iou=0.5)
    high = decode(output, "raw", confidence=confidence, iou=0.5)
    np.testing.assert_array_equal(low.corners[low.scores > confidence], high.corners)


def test_of_two_boxes_of_one_class_in_one_place_the_better_stays_and_classes_do_not_compete():
    output = np.zeros((1, 6, 8), np.float32)
    output[0, :4, :3] = np.array([[100, 100, 40, 40]] * 3).T
    output[0, 4:, :3] = [[0.7, 0.9, 0.0], [0.0, 0.0, 0.8]]
    found = decode(output, "raw", confidence=0.5, iou=0.6)
    assert found.scores.tolist() == pytest.approx([0.9, 0.8])
    assert found.classes.tolist() == [0, 1]
    assert found.corners[0].tolist() == [80, 80, 120, 120]


@pytest.mark.parametrize("layout", ["raw", "final"])
def test_an_output_without_a_confident_box_gives_none(layout):
    shape = (1, 84, 100) if layout == "raw" else (1, 300, 6)
    assert len(decode(np.zeros(shape, np.float32), layout, confidence=0.5, iou=0.6).scores) == 0


def test_numbers_that_are_not_finite_are_no_boxes():
    output = np.full((1, 5, 20), np.nan, np.float32)
    output[0, 4] = 0.9
    output[0, :4, 0] = [np.inf, 1, 2, 2]
    output[0, :4, 1] = [50, 50, 10, 10]
    assert decode(output, "raw", confidence=0.5, iou=0.6).corners.tolist() == [[45, 45, 55, 55]]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((1, 84, 8400), "raw"),
        ((1, 5, 1917), "raw"),
        ((1, 300, 6), "final"),
        ((1, 0, 6), "final"),
        ((1, 1000), None),
        ((1, 25200, 85), None),
        ((2, 84, 8400), None),
        ((1, 3, 640, 640), None),
    ],
)
def test_the_layout_of_an_output_is_told_by_its_shape(shape, layout):
    assert layout_of(shape) == layout


def test_a_letterboxed_frame_is_centred_on_grey_and_its_boxes_come_back():
    picture = Picture((640, 640), "float32", channels_last=False, stretch=False)
    blob = picture.fit(np.full((240, 320, 3), (255, 0, 0), np.uint8))  # blue
    assert blob.shape == (1, 3, 640, 640)
    assert blob[0, :, 0, 0].tolist() == pytest.approx([114 / 255] * 3)
    assert blob[0, :, 320, 320].tolist() == pytest.approx([0, 0, 1])
    back = picture.to_frame(np.array([[0, 80, 640, 560], [320, 320, 340, 340]], np.float32))
    assert back.tolist() == [[0, 0, 320, 240], [160, 120, 170, 130]]


def test_a_stretched_frame_fills_the_input_and_its_boxes_come_back():
    picture = Picture((300, 300), "float16", channels_last=True, stretch=True)
    blob = picture.fit(np.full((480, 640, 3), 255, np.uint8))
    assert (blob.shape, blob.dtype) == ((1, 300, 300, 3), np.float16)
    assert (blob == 1).all()
    assert picture.to_frame(np.array([[150, 150, 300, 300]], np.float32)).tolist() == [[320, 240, 640, 480]]


def test_frames_of_changing_size_leave_nothing_of_the_one_before():
    picture = Picture((64, 64), "float32", channels_last=False, stretch=False)
    picture.fit(np.full((64, 64, 3), 255, np.uint8))
    blob = picture.fit(np.full((32, 64, 3), 255, np.uint8))
    assert blob[0, 0, 0, 0] == pytest.approx(114 / 255)
    assert blob[0, 0, 32, 32] == 1
