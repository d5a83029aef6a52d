"""The detector as a process: real children, the real model, the real video."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from ciphertoll.errors import CiphertollError, MachineError, SpecError
from ciphertoll.model import Detector
from ciphertoll.workloads import base
from ciphertoll.workloads.resolve import BUILT_IN_VIDEO
from test_detector_models import model as make_model
from test_detector_models import raw

READY_S = 30.0


def started(folder: Path, **settings) -> base.Running:
    running = base.start(Detector(**settings), folder)
    assert running
    return running


def refusal(folder: Path, **settings) -> CiphertollError:
    with pytest.raises(CiphertollError) as caught:
        started(folder, **settings).wait_ready(READY_S)
    return caught.value


def let_it_use(pid: int, cpu_s: float) -> None:
    """Wait until the process has used so much processor time: unlike time on the wall, that is work done."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = 0.0
    while used < cpu_s:
        select.select([], [], [], 0.05)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / ticks


def wait_for_end(pid: int, timeout_s: float = 10.0) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def images(count: int) -> list[np.ndarray]:
    capture = cv2.VideoCapture(str(BUILT_IN_VIDEO))
    return [capture.read()[1] for _ in range(count)]


def test_the_built_in_detector_finds_the_people_in_the_built_in_video(tmp_path):
    began = time.monotonic_ns()
    running = started(tmp_path)
    facts = running.wait_ready(READY_S)
    let_it_use(running.pid, 3.5)
    frames = running.stop()
    ended = time.monotonic_ns()
    assert len(frames) >= 100
    assert 2 < frames["detections"].mean() < 6
    assert base.unfit(facts, frames) is None
    spans = frames["preprocess_ns"] + frames["inference_ns"] + frames["postprocess_ns"]
    assert (spans <= frames["done_ns"] - frames["started_ns"]).all()
    assert (frames["started_ns"][1:] >= frames["done_ns"][:-1]).all()
    assert began < frames["started_ns"][0] < frames["done_ns"][-1] < ended
    assert not running.alive()
    assert running.failure() is None
    assert running.stop().equals(frames)
    assert list(tmp_path.iterdir()) == []


def test_ready_says_what_a_result_must_name(tmp_path):
    cpu = min(os.sched_getaffinity(0))
    running = started(tmp_path, affinity=(cpu,))
    facts = running.wait_ready(READY_S)
    assert os.sched_getaffinity(running.pid) == {cpu}
    running.kill()
    assert facts["runtime"] == "onnxruntime"
    assert (facts["provider"], facts["threads"], facts["spinning"]) == ("cpu", 1, False)
    assert facts["affinity"] == [cpu]
    assert (facts["model"], facts["input_size"], facts["fit"]) == ("ssdlite-pedestrian-300.onnx", [300, 300], "stretch")
    assert (facts["layout"], facts["output_shape"]) == ("raw", [1, 5, 1917])
    assert len(facts["model_sha256"]) == len(facts["video"]["sha256"]) == 64
    assert (facts["video"]["width"], facts["video"]["height"], facts["video"]["frames"]) == (640, 480, 795)
    assert facts["pid"] == running.pid


def test_a_model_of_the_user_runs_on_a_folder_of_frames_again_and_again(tmp_path):
    frames = tmp_path / "MOT17-05" / "img1"
    frames.mkdir(parents=True)
    for i, image in enumerate(images(3)):
        cv2.imwrite(str(frames / f"{i + 1:06d}.jpg"), image)
    running = started(tmp_path, model=str(make_model(tmp_path / "m.onnx", raw())), video=str(frames.parent))
    facts = running.wait_ready(READY_S)
    let_it_use(running.pid, 1.0)
    found = running.stop()
    assert facts["video"] == {
        "file": "MOT17-05",
        "kind": "folder",
        "width": 640,
        "height": 480,
        "frames": 3,
        "decoded_ahead": 4,
    }
    assert facts["fit"] == "letterbox"
    assert len(found) > 3
    assert found["detections"].unique().to_list() == [3]
    assert facts["least_detections_per_frame"] is None


def test_a_video_of_the_user_starts_again_when_it_ends(tmp_path):
    path = tmp_path / "short.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (640, 480))
    for image in images(4):
        writer.write(image)
    writer.release()
    running = started(tmp_path, video=str(path))
    facts = running.wait_ready(READY_S)
    let_it_use(running.pid, 1.5)
    assert len(running.stop()) > 8
    assert facts["video"]["frames"] == 4


def test_a_classifier_is_refused(tmp_path):
    path = make_model(tmp_path / "resnet.onnx", np.zeros((1, 1000), np.float32))
    error = refusal(tmp_path, model=str(path))
    assert isinstance(error, SpecError)
    assert "`resnet.onnx` is not a detector: its output is [1, 1000]" in error.what
    assert error.accepted


def test_a_file_that_is_no_video_is_refused_by_name(tmp_path):
    path = tmp_path / "noise.mp4"
    path.write_bytes(bytes(range(256)) * 100)
    error = refusal(tmp_path, video=str(path))
    assert isinstance(error, SpecError)
    assert "`noise.mp4` has no frame that can be decoded" in error.what


def test_a_video_without_frames_is_refused_by_name(tmp_path):
    path = tmp_path / "empty.avi"
    cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48)).release()
    error = refusal(tmp_path, video=str(path))
    assert isinstance(error, SpecError)
    assert "`empty.avi` has no frame" in error.what


def test_a_folder_without_images_is_refused_by_name(tmp_path):
    (tmp_path / "nothing").mkdir()
    error = refusal(tmp_path, video=str(tmp_path / "nothing"))
    assert isinstance(error, SpecError)
    assert "`nothing` holds no frames" in error.what


def test_a_frame_that_is_no_image_is_refused_by_name(tmp_path):
    (tmp_path / "img1").mkdir()
    (tmp_path / "img1" / "000001.jpg").write_bytes(b"not a picture")
    error = refusal(tmp_path, video=str(tmp_path))
    assert isinstance(error, SpecError)
    assert "`000001.jpg` cannot be decoded" in error.what


def test_a_camera_that_does_not_open_is_named(tmp_path):
    error = refusal(tmp_path, video="63")
    assert isinstance(error, MachineError)
    assert "camera 63 does not open" in error.what


def test_a_detector_ends_when_its_parent_is_killed(tmp_path):
    code = (
        "import sys, time, pathlib\nfrom ciphertoll.model import Detector\nfrom ciphertoll.workloads import base\n"
        "r = base.start(Detector(), pathlib.Path(sys.argv[1]))\nr.wait_ready(30)\nprint(r.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    detector = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert wait_for_end(detector)
    assert (tmp_path / "frames.npy").exists()


def test_a_detector_that_is_killed_is_said_to_have_ended_unexpectedly(tmp_path):
    running = started(tmp_path)
    running.wait_ready(READY_S)
    os.kill(running.pid, signal.SIGKILL)
    assert wait_for_end(running.pid)
    assert not running.alive()
    with pytest.raises(MachineError, match="the detector ended unexpectedly with signal SIGKILL"):
        running.stop()


def test_frames_that_do_not_fit_on_the_disk_are_an_error_that_says_so(tmp_path):
    running = started(tmp_path)
    running.wait_ready(READY_S)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (16, 16))
    with pytest.raises(MachineError, match="frames of the workload cannot be written: File too large"):
        running.stop()
    assert not (tmp_path / "frames.npy").exists()


def test_a_detector_that_is_stopped_before_it_is_ready_has_no_frames(tmp_path):
    assert started(tmp_path).stop().is_empty()


def test_a_detector_that_is_too_slow_to_start_is_ended(tmp_path):
    running = started(tmp_path)
    with pytest.raises(MachineError, match=r"the detector completed no frame within 0\.01 s"):
        running.wait_ready(0.01)
    assert not running.alive()


def test_a_working_directory_with_names_of_libraries_does_no_harm(tmp_path, monkeypatch):
    shutil.copy(__file__, tmp_path / "numpy.py")
    monkeypatch.chdir(tmp_path)
    running = started(tmp_path)
    running.wait_ready(READY_S)
    running.kill()
