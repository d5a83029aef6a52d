"""Models that users bring: every layout of Ultralytics exports, and what is not a detector.

The graphs are made here, with the inputs, outputs and metadata of real exports and with outputs that are planted.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ciphertoll.errors import MachineError, SpecError
from ciphertoll.workloads.boxes import decode, layout_of
from ciphertoll.workloads.network import load_network
from ciphertoll.workloads.picture import Picture

# x1, y1, x2, y2 in pixels of the input, score, class
PLANTED = [
    (40, 60, 140, 260, 0.9, 0),
    (300, 300, 420, 420, 0.8, 2),
    (310, 300, 430, 420, 0.7, 5),
    (5, 5, 60, 60, 0.4, 0),
]


def raw(classes: int = 80, boxes: int = 8400) -> np.ndarray:
    output = np.zeros((1, 4 + classes, boxes), np.float32)
    for i, (x1, y1, x2, y2, score, kind) in enumerate(PLANTED):
        for shift, worse in ((0, 0), (3, 0.05), (-2, 0.1)):  # copies that suppression must remove
            column = 700 * i + 40 * shift + 200
            output[0, :4, column] = (x1 + x2) / 2 + shift, (y1 + y2) / 2, x2 - x1, y2 - y1
            output[0, 4 + kind, column] = score - worse
    return output


def final() -> np.ndarray:
    output = np.zeros((1, 300, 6), np.float32)
    output[0, : len(PLANTED)] = PLANTED
    return output


def model(path, output, *, shape=(1, 3, 640, 640), kind=TensorProto.FLOAT, open_output=False, **metadata):
    """A graph that looks at all of its picture and answers `output`."""
    inside = [
        helper.make_node("Cast", ["images"], ["picture"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["picture"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["planted", "nothing"], ["wide"]),
        helper.make_node("Cast", ["wide"], ["output0"], to=kind),
    ]
    declared = ["batch", *output.shape[1:-1], "anchors"] if open_output else output.shape
    graph = helper.make_graph(
        inside,
        "planted",
        [helper.make_tensor_value_info("images", kind, shape)],
        [helper.make_tensor_value_info("output0", kind, declared)],
        [numpy_helper.from_array(output, "planted"), numpy_helper.from_array(np.float32(0), "zero")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(made, {"task": "detect", **metadata})
    onnx.save(made, path)
    return path


def loaded(path, provider="cpu"):
    return load_network(path, provider=provider, threads=1, spinning=False)


def found_in(path, confidence=0.5):
    network = loaded(path)
    picture = Picture(network.size, network.dtype, channels_last=network.channels_last, stretch=network.stretch)
    output = network(picture.fit(np.zeros((480, 640, 3), np.uint8)))
    layout = layout_of(output.shape)
    assert layout
    return decode(output, layout, confidence=confidence, iou=0.6)


def test_both_layouts_give_the_same_detections(tmp_path):
    before = found_in(model(tmp_path / "raw.onnx", raw()))
    after = found_in(model(tmp_path / "final.onnx", final(), end2end="False"))
    np.testing.assert_allclose(before.corners, after.corners, atol=1e-3)
    np.testing.assert_allclose(before.scores, after.scores)
    assert before.classes.tolist() == after.classes.tolist() == [0, 2, 5]


def test_metadata_that_calls_a_raw_output_final_is_not_believed(tmp_path):
    assert len(found_in(model(tmp_path / "m.onnx", raw(), end2end="True")).scores) == 3


def test_an_export_with_open_sides_takes_the_size_in_its_metadata(tmp_path):
    path = model(
        tmp_path / "m.onnx", raw(), shape=["batch", 3, "height", "width"], open_output=True, imgsz="[320, 416]"
    )
    assert loaded(path).size == (320, 416)
    assert len(found_in(path).scores) == 3


def test_an_export_with_open_sides_and_no_metadata_takes_640(tmp_path):
    path = model(tmp_path / "m.onnx", raw(), shape=["batch", 3, "height", "width"], open_output=True)
    assert loaded(path).size == (640, 640)


def test_an_export_in_half_precision_takes_half_precision(tmp_path):
    path = model(tmp_path / "m.onnx", final(), kind=TensorProto.FLOAT16)
    assert loaded(path).dtype == "float16"
    assert found_in(path).classes.tolist() == [0, 2, 5]


def test_an_input_of_another_shape_is_filled_in_its_own_proportions(tmp_path):
    assert loaded(model(tmp_path / "m.onnx", raw(), shape=(1, 3, 384, 672))).size == (384, 672)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shape": (1, 10)}, "no image input"),
        ({"shape": (1, 1, 640, 640)}, "no image input"),
        ({"shape": (8, 3, 640, 640)}, "no image input"),
        ({"kind": TensorProto.UINT8}, "type tensor"),
        ({"task": "segment"}, "`segment`"),
    ],
)
def test_a_model_that_is_not_for_detection_is_refused_with_the_reason(tmp_path, options, why):
    path = model(tmp_path / "odd.onnx", raw(), **options)
    with pytest.raises(SpecError, match=why) as caught:
        loaded(path)
    assert "odd.onnx" in caught.value.what
    assert caught.value.accepted


def test_a_file_that_is_not_onnx_is_refused_by_name(tmp_path):
    path = tmp_path / "garbage.onnx"
    path.write_bytes(b"\x00\x01 this is not a model" * 50)
    with pytest.raises(SpecError, match=r"garbage\.onnx` is not an ONNX model"):
        loaded(path)


def test_a_provider_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(SpecError) as caught:
        loaded(model(tmp_path / "m.onnx", raw()), provider="tensorrtt")
    assert "cpu" in caught.value.accepted


class FakeInterpreter:
    """A LiteRT interpreter with a planted output, in the units of Ultralytics exports."""

    shape = (1, 640, 640, 3)
    dtype = np.float32

    def __init__(self, model_path, num_threads):
        if b"bad" in Path(model_path).read_bytes():
            raise ValueError("Model provided has model identifier 'bad', should be 'TFL3'\nmore")
        self.threads = num_threads

    def allocate_tensors(self): ...

    def invoke(self): ...

    def get_input_details(self):
        return [{"index": 0, "shape": np.array(self.shape), "dtype": self.dtype}]

    def get_output_details(self):
        return [{"index": 7}]

    def set_tensor(self, index, blob):
        assert (index, blob.shape, blob.dtype) == (0, self.shape, np.dtype(self.dtype))

    def get_tensor(self, index):
        assert index == 7
        output = raw()
        output[:, :4] /= 640
        return output


@pytest.fixture
def litert(monkeypatch):
    interpreter = types.ModuleType("ai_edge_litert.interpreter")
    fake = type("Interpreter", (FakeInterpreter,), {})
    interpreter.Interpreter = fake
    package = types.ModuleType("ai_edge_litert")
    package.interpreter = interpreter
    monkeypatch.setitem(sys.modules, "ai_edge_litert", package)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", interpreter)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.3.0")
    return fake


@pytest.mark.parametrize("shape", [(1, 640, 640, 3), (1, 3, 640, 640)])
def test_a_tflite_model_is_fed_in_its_own_order_of_axes(tmp_path, litert, shape):
    litert.shape = shape
    path = tmp_path / "m.tflite"
    path.write_bytes(b"fine")
    network = loaded(path)
    picture = Picture(network.size, network.dtype, channels_last=network.channels_last, stretch=False)
    found = decode(network(picture.fit(np.zeros((9, 9, 3), np.uint8))), "raw", confidence=0.5, iou=0.6)
    assert network.normalised
    assert network.size == (640, 640)
    np.testing.assert_allclose(found.corners[0] * 640, PLANTED[0][:4], atol=1e-3)


def test_a_quantised_tflite_input_is_refused(tmp_path, litert):
    litert.dtype = np.int8
    (tmp_path / "m.tflite").write_bytes(b"fine")
    with pytest.raises(SpecError, match="type int8"):
        loaded(tmp_path / "m.tflite")


@pytest.mark.usefixtures("litert")
def test_a_file_that_is_not_tflite_is_refused_in_one_line(tmp_path):
    (tmp_path / "m.tflite").write_bytes(b"bad")
    with pytest.raises(SpecError, match="identifier 'bad'") as caught:
        loaded(tmp_path / "m.tflite")
    assert "\n" not in caught.value.what


def test_a_tflite_model_without_its_runtime_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(MachineError) as caught:
        loaded(tmp_path / "m.tflite")
    assert "pip install ai-edge-litert" in str(caught.value.hint)


def test_a_tflite_model_runs_on_no_other_provider(tmp_path):
    with pytest.raises(SpecError, match="cuda"):
        loaded(tmp_path / "m.tflite", provider="cuda")
