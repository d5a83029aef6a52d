"""From what a user writes to a Spec, and what is said when that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciphertoll.errors import SpecError
from ciphertoll.model import NS, Cell, Command, Detector, NoWorkload, Paced, Spec
from ciphertoll.spec import BY_KEY, PRESETS, SETTINGS, Given, build, lacks, measured_ns, names, read
from ciphertoll.spec.values import shown, span

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.toml"))
WOLFSSL = [{"protocol": "coaps", "library": "dimpl"}, {"protocol": "coaps", "library": "wolfssl"}]
NO_WOLFSSL = WOLFSSL[:1]


def options(**values: Any) -> dict[str, Given]:
    """Choices as the command line makes them; the keys are options with underscores."""
    by_option = {setting.option: setting for setting in SETTINGS if setting.option}
    chosen = {}
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        setting = by_option[option]
        chosen[setting.key] = Given(setting.read(value, option), option, 2)
    return chosen


def of(**values: Any) -> Spec:
    return build(options(**values))


def labels(spec: Spec) -> set[str]:
    return {cell.channel.label for cell in spec.cells if cell.channel}


def beside(spec: Spec, kind: str = "detector") -> list[Cell]:
    return [cell for cell in spec.cells if cell.channel and cell.workload.kind == kind]


def paced(spec: Spec, kind: str = "detector") -> set[tuple[float, int, int, int]]:
    loads = [cell.load for cell in beside(spec, kind) if isinstance(cell.load, Paced)]
    return {(load.rate_hz, load.size_bytes, load.warm_up_ns, load.duration_ns) for load in loads}


def refused(expected: str, **values: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        of(**values)
    assert expected in caught.value.render()
    return caught.value


def from_toml(folder: Path, text: str) -> Spec:
    (folder / "edge.toml").write_text(text)
    return build(read(folder / "edge.toml"))


def refused_toml(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        from_toml(folder, text)
    return caught.value.render()


def test_quick_has_twelve_secured_channels_three_unprotected_and_the_workload_alone() -> None:
    spec = build()
    assert len(beside(spec)) == len(beside(spec, "none")) == 15
    assert len([cell for cell in spec.cells if cell.channel is None]) == 1
    assert sum(cell.channel.security is not None for cell in beside(spec) if cell.channel) == 12


def test_quick_measures_for_at_most_three_minutes() -> None:
    assert measured_ns(build()) <= 180 * NS


def test_quick_gives_every_channel_enough_exchanges_for_a_p99() -> None:
    spec = build()
    for cell in spec.cells:
        if isinstance(cell.load, Paced):
            assert spec.blocks * cell.load.rate_hz * cell.load.duration_ns / NS >= 368


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_measures_a_baseline_twice_in_each_block(preset: str) -> None:
    spec = of(preset=preset)
    twins = [cell for cell in spec.cells if cell.id in spec.twins]
    assert any(cell.channel is None for cell in twins)
    assert {cell.load.label for cell in twins if cell.channel} == {cell.load.label for cell in beside(spec)}
    assert all(cell.channel.security is None for cell in twins if cell.channel)


def test_paper_is_the_published_experiment() -> None:
    spec = of(preset="paper")
    assert spec.blocks == 10
    assert paced(spec) == {(1.0, 512, 5 * NS, 55 * NS), (100.0, 2048, 5 * NS, 55 * NS)}
    assert len(beside(spec)) == 2 * 15


def test_axes_are_multiplied() -> None:
    spec = of(protocol="https,h3", suite="chacha20,aes128", group="X25519,MLKEM768", rate="1,100", size="2048")
    secured = [cell for cell in beside(spec) if cell.channel and cell.channel.security]
    assert len(secured) == 2 * 2 * 2 * 2
    assert len({cell.id for cell in spec.cells}) == len(spec.cells)


def test_each_secured_protocol_brings_its_unprotected_twin() -> None:
    assert labels(of(protocol="h3,coaps", suite="aes128")) == {"http", "coap", "h3 AES-128-GCM", "coaps AES-128-GCM"}


def test_baselines_can_be_left_out() -> None:
    assert labels(of(protocol="h3", suite="aes128", baselines=False)) == {"h3 AES-128-GCM"}


@pytest.mark.parametrize("spelling", ["aes128", "AES-128-GCM", "aes128gcm", "TLS_AES_128_GCM_SHA256"])
def test_a_suite_may_be_spelled_as_published(spelling: str) -> None:
    cell = next(c for c in beside(of(protocol="https", suite=spelling)) if c.channel and c.channel.security)
    assert cell.channel
    assert cell.channel.security
    assert cell.channel.security.suite == "TLS_AES_128_GCM_SHA256"


def test_a_short_suite_name_follows_the_version() -> None:
    spec = of(protocol="coaps", suite="aes128", tls="dtls1.2,dtls1.3")
    found = {
        (c.channel.security.version, c.channel.security.suite) for c in spec.cells if c.channel and c.channel.security
    }
    legacy = ("DTLS 1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert found == {("DTLS 1.3", "TLS_AES_128_GCM_SHA256"), legacy}


def test_a_suite_of_version_1_2_brings_that_version() -> None:
    spec = of(protocol="coaps", suite="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert {c.channel.security.version for c in spec.cells if c.channel and c.channel.security} == {"DTLS 1.2"}


def test_a_version_leaves_protocols_alone_that_cannot_have_it() -> None:
    spec = of(tls="dtls1.2")
    versions = {
        (c.channel.protocol, c.channel.security.version) for c in spec.cells if c.channel and c.channel.security
    }
    assert versions == {(p, "TLS 1.3") for p in ("https", "h3", "mqtts")} | {("coaps", "DTLS 1.2")}


@pytest.mark.parametrize(("offer", "library"), [(WOLFSSL, "wolfssl"), (NO_WOLFSSL, "dimpl"), (None, "wolfssl")])
def test_coaps_uses_wolfssl_where_the_engine_has_it(offer: list[dict[str, str]] | None, library: str) -> None:
    spec = build(options(protocol="coaps"), offer=offer)
    assert {c.channel.security.library for c in spec.cells if c.channel and c.channel.security} == {library}


def test_a_library_that_was_named_is_kept_even_if_the_engine_lacks_it() -> None:
    spec = build(options(protocol="coaps", library="wolfssl"), offer=NO_WOLFSSL)
    channel = next(c.channel for c in spec.cells if c.channel and c.channel.security)
    assert channel.security
    assert channel.security.library == "wolfssl"
    reason = lacks(channel, [*NO_WOLFSSL])
    assert reason
    assert "no version `DTLS 1.3`" in reason


def test_what_the_engine_lacks_is_named() -> None:
    channel = next(c.channel for c in of(protocol="https", group="MLKEM512").cells if c.channel and c.channel.security)
    row = {"protocol": "https", "version": "TLS 1.3", "suite": "TLS_AES_128_GCM_SHA256", "group": "X25519"}
    assert "no group `MLKEM512` for https, TLS 1.3" in str(lacks(channel, [row]))
    assert "no protocol `https`" in str(lacks(channel, []))


def test_a_duration_replaces_the_shorter_one_without_workload() -> None:
    spec = of(duration="20s")
    assert {load[3] for load in paced(spec) | paced(spec, "none")} == {20 * NS}
    assert {load[2] for load in paced(spec, "none")} == {NS // 2}


def test_a_warm_up_that_nothing_uses_is_no_obstacle() -> None:
    assert paced(of(workload="none", duration="500ms"), "none") == {(100.0, 2048, NS // 2, NS // 2)}


def test_a_rate_replaces_the_pairs_of_a_preset() -> None:
    assert {load[:2] for load in paced(of(preset="paper", rate="10"))} == {(10.0, 512), (10.0, 2048)}
    assert {load[:2] for load in paced(of(preset="paper", rate="10", size="64"))} == {(10.0, 64)}
    assert {load[:2] for load in paced(of(pairs="1x512"))} == {(1.0, 512)}


@pytest.mark.parametrize(("rate", "in_flight"), [("1", 64), ("100", 500), ("10000", 960)])
def test_the_schedule_is_not_held_back_by_default(rate: str, in_flight: int) -> None:
    spec = of(rate=rate, workload="none", duration="2s")
    assert {cell.load.in_flight for cell in beside(spec, "none") if isinstance(cell.load, Paced)} == {in_flight}


@pytest.mark.parametrize(
    ("text", "workloads"),
    [
        ("none", [NoWorkload()]),
        ("detector,none", [Detector(), NoWorkload()]),
        ("python3 -c 'a, b'", [Command(("python3", "-c", "a, b"))]),
    ],
)
def test_a_workload_is_a_name_or_a_command(text: str, workloads: list[Any]) -> None:
    assert list(dict.fromkeys(cell.workload for cell in of(workload=text).cells)) == workloads


def test_without_a_workload_there_is_none_alone() -> None:
    spec = of(workload="none")
    assert all(cell.channel for cell in spec.cells)
    assert len(spec.twins) == 1


def test_settings_of_the_detector_arrive() -> None:
    detector = beside(of(model="a.onnx", video="0", threads="3", confidence="0.25", workload_cpus="0,2-3"))[0].workload
    assert detector == Detector("a.onnx", "0", threads=3, confidence=0.25, affinity=(0, 2, 3))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"preset": "quik"}, "did you mean `quick`?"),
        ({"protocol": "htps"}, "did you mean `https`?"),
        ({"suite": "aes182"}, "did you mean `aes128`?"),
        ({"suite": "TLS_AES_128_CCM_SHA256"}, "suite `TLS_AES_128_CCM_SHA256` is unknown"),
        ({"group": "X25591"}, "did you mean `X25519`?"),
        ({"certificate": "ECDSA-P265"}, "did you mean `ECDSA-P256`?"),
        ({"library": "openssl"}, "accepted: rustls, wolfssl, dimpl"),
        ({"tls": "tls1.2"}, "version `tls1.2` is unknown"),
        ({"workload": "detecter"}, "did you mean `detector`?"),
        ({"http": "3"}, "accepted: 1.1, 2"),
        ({"rate": "-1"}, "rate `-1` is out of range"),
        ({"rate": "0"}, "a number from 0.1 to 10,000 per second"),
        ({"rate": "fast"}, "rate `fast` is no number"),
        ({"rate": "nan"}, "out of range"),
        ({"size": "0"}, "out of range"),
        ({"size": "1048577"}, "a whole number from 1 to 1,048,576 bytes"),
        ({"duration": "0s"}, "duration `0s` is out of range"),
        ({"duration": "-5s"}, "out of range"),
        ({"duration": "20"}, "accepted: 20s, 500ms, 2min"),
        ({"duration": "2s", "warm_up": "3s"}, "duration `2s` is shorter than the warm-up `3s`"),
        ({"preset": "paper", "duration": "4s"}, "shorter than the warm-up `5s`"),
        ({"blocks": "0"}, "blocks `0` is out of range"),
        ({"in_flight": "0"}, "out of range"),
        ({"sensor_interval": "10ms"}, "100ms to"),
        ({"engine_cpus": "a"}, "accepted: 0, 0,2, 2-3"),
        ({"server": "box"}, "server `box` needs its token"),
        ({"workload": "none", "model": "x.onnx"}, "belongs to the workload `detector`"),
        ({"protocol": "mqtts", "http": "2"}, "setting `http` belongs to http and https"),
        ({"protocol": "http", "suite": "aes128"}, "needs a secured protocol"),
        ({"pairs": "100"}, "accepted: 1x512, 100x2048"),
        ({"protocol": ""}, "protocol `` is unknown"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(values: dict[str, str], expected: str) -> None:
    refused(expected, **values)


def test_a_suite_that_a_protocol_cannot_have_is_refused() -> None:
    error = refused(
        "is not offered by protocol `https`", protocol="https", suite="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    )
    assert error.at == "--suite"
    assert error.accepted == names.suites_of("TLS 1.3")


@pytest.mark.parametrize(("option", "value"), [("tls", "dtls1.2"), ("library", "wolfssl")])
def test_a_version_or_library_that_no_protocol_can_have_is_refused(option: str, value: str) -> None:
    refused("is not offered by protocol `https`", protocol="https", **{option: value})


def test_a_misspelled_key_is_refused_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    said = refused_toml(tmp_path, 'name = "x"\n\n[channel]\nprotocol = "h3"\nsiute = ["aes128"]\n')
    assert "key `channel.siute` is unknown" in said
    assert "edge.toml:5 (channel.siute)" in said
    assert "did you mean `channel.suite`?" in said


def test_a_misspelled_table_is_refused_with_the_nearest(tmp_path: Path) -> None:
    said = refused_toml(tmp_path, "blocks = 2\n[chanel]\n")
    assert "edge.toml:2" in said
    assert "did you mean `channel`?" in said


def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path) -> None:
    said = refused_toml(tmp_path, '# edge\n[load]\nrate = 10\n\n[channel]\nsuite = ["aes128",\n  "aes512"]\n')
    assert "edge.toml:6 (channel.suite)" in said


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    said = refused_toml(tmp_path, "blocks = 2\nrate == 3\n")
    assert "edge.toml:2" in said


@pytest.mark.parametrize("text", ["channel = 3", 'workload = "detecter"', "blocks = true", "blocks = 1.5", "seed = -1"])
def test_a_value_of_another_type_is_refused(tmp_path: Path, text: str) -> None:
    assert "edge.toml:1" in refused_toml(tmp_path, text)


def test_a_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read(Path("nowhere.toml"))


def test_the_command_line_goes_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text('[load]\nrate = [1, 100]\nduration = "4s"\n')
    spec = build(read(tmp_path / "edge.toml"), options(rate="7"))
    assert {load[0] for load in paced(spec)} == {7.0}
    assert {load[3] for load in paced(spec)} == {4 * NS}


@pytest.mark.parametrize(
    "text",
    [
        'workload = { command = "cat x" }',
        '[workload]\ncommand = "cat x"',
        '[workload]\ncommand = ["cat", "x"]',
        'workload.command = "cat x"',
        'workload = [{ command = "cat x" }]',
    ],
)
def test_a_command_may_be_written_in_several_ways(tmp_path: Path, text: str) -> None:
    workloads = {cell.workload for cell in from_toml(tmp_path, text).cells}
    assert workloads == {Command(("cat", "x"))}


def test_a_workload_of_two_kinds_at_once_is_refused(tmp_path: Path) -> None:
    assert "both a kind and a command" in refused_toml(tmp_path, '[workload]\nkind = "none"\ncommand = "cat"\n')


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_spec(path: Path) -> None:
    assert build(read(path)).cells


def test_there_is_a_smallest_example_and_a_full_one() -> None:
    lengths = [len(path.read_text().splitlines()) for path in EXAMPLES]
    assert min(lengths) <= 8
    full = max(EXAMPLES, key=lambda path: len(path.read_text()))
    missing = {key.rpartition(".")[2] for key in BY_KEY} - {"kind"}
    assert {name for name in missing if name not in full.read_text()} == set()


def test_the_reference_names_every_key_and_option() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "spec.md").read_text()
    wanted = {f"`{setting.key}`" for setting in SETTINGS} | {f"`{s.option}`" for s in SETTINGS if s.option}
    assert {name for name in wanted if name not in text} == set()


@given(st.integers(1, 10**13))
@settings(max_examples=200)
def test_a_time_that_is_shown_reads_back_as_it_was(span_ns: int) -> None:
    back = span("time")(shown(span_ns), "here")
    assert abs(back - span_ns) <= span_ns * 1e-5
