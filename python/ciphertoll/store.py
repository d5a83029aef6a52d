"""The result folder: everything that one run observed, in files that need no ciphertoll to be read.

    run.json                   spec, its id, seed, provenance, versions
    plan.json                  the trials as they were planned
    trials/<trial id>/         appears by rename, when it is complete, and never changes
        trial.json             the trial: status, reasons, window, facts
        exchanges.parquet      one row per exchange, warm-up included
        frames.parquet         one row per unit of work
        sensors.parquet        one row per sensor sample

`docs/results.md` describes the columns.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ciphertoll.errors import BugError, MachineError, SpecError
from ciphertoll.metrics import METRICS_VERSION
from ciphertoll.model import SCHEMA_VERSION, Sample, Spec, Trial

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

OUTCOMES = ("unfinished", "done", "timed_out", "closed", "refused", "corrupt")  # by number in the engine's file
_RUN, _PLAN, _TRIALS, _TRIAL = "run.json", "plan.json", "trials", "trial.json"


class Results:
    """A result folder. Trials are only ever added."""

    def __init__(self, path: Path, spec: Spec, provenance: dict[str, Any], trials: Iterable[Trial] = ()) -> None:
        self.path = path
        self.spec = spec
        self.provenance = provenance
        self._trials = {trial.id: trial for trial in trials}

    @classmethod
    def open(cls, path: Path | str) -> Results:
        """Read a result folder.

        Raises SpecError if it is none, MachineError if it cannot be read or is of another schema version.
        """
        path = Path(path)
        if not (path / _RUN).is_file():
            raise SpecError(f"`{path}` is not a result folder", hint=f"a result folder has a file `{_RUN}`")
        run = _read_json(path / _RUN)
        _check_version(run, path)
        spec = _decoded(Spec, run.get("spec"), path / _RUN)
        found = sorted((path / _TRIALS).glob(f"b*/{_TRIAL}"))
        trials = [_decoded(Trial, _read_json(file), file) for file in found]
        provenance = {**run.get("provenance", {}), "metrics_version": run.get("metrics_version")}
        return cls(path, spec, provenance, trials)

    @classmethod
    def resume(cls, path: Path | str, spec: Spec) -> Results:
        """Open `path` to add what is missing. Raises SpecError if it holds the results of another spec."""
        results = cls.open(path)
        if results.spec.id != spec.id:
            raise SpecError(
                f"`{path}` holds results of spec `{results.spec.id}`, not of spec `{spec.id}`",
                hint="resume with the spec it was begun with, or write to another folder",
            )
        return results

    @property
    def trials(self) -> list[Trial]:
        """All that have landed, in the order of the plan."""
        return [self._trials[trial_id] for trial_id in sorted(self._trials)]

    @property
    def plan(self) -> list[Trial]:
        """The trials as planned; empty before `keep_plan`."""
        file = self.path / _PLAN
        if not file.is_file():
            return []
        return [_decoded(Trial, entry, file) for entry in _read_json(file)["trials"]]

    def keep_plan(self, trials: Sequence[Trial]) -> None:
        """Write the plan down, once; a plan that is there already stays."""
        if not (self.path / _PLAN).exists():
            _write_json(self.path / _PLAN, {"trials": [encode(trial) for trial in trials]})

    def exchanges(self, trial: Trial) -> pl.DataFrame:
        """One row per exchange, warm-up included, in the order in which they fell due; columns as `exchange_schema`."""
        return self._table(trial, "exchanges", exchange_schema())

    def frames(self, trial: Trial) -> pl.DataFrame:
        """One row per unit of work; columns as `frame_schema`."""
        return self._table(trial, "frames", frame_schema())

    def sensors(self, trial: Trial) -> pl.DataFrame:
        """One row per sensor sample; columns as `sensor_schema`."""
        return self._table(trial, "sensors", sensor_schema())

    def land(
        self, trial: Trial, samples_file: Path | None, frames: pl.DataFrame | None, sensors: Iterable[Sample]
    ) -> None:
        """Add a trial that is over; it appears whole or not at all.

        samples_file  as the engine wrote it; None, or a file that does not exist: no exchanges.

        Raises MachineError if it cannot be written.
        """
        final = self.path / _TRIALS / trial.id
        partial = self.path / _TRIALS / f".partial-{trial.id}"
        if trial.id in self._trials or final.exists():
            raise BugError(f"trial `{trial.id}` has landed before")
        tables = {"frames": frames, "sensors": sensor_table(sensors)}
        if samples_file is not None and samples_file.exists():
            tables["exchanges"] = read_samples(samples_file)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, table in tables.items():
                if table is not None and not table.is_empty():
                    _write(partial / f"{name}.parquet", _parquet(table))
            _write(partial / _TRIAL, _text(encode(trial)))
            partial.rename(final)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise _not_written(f"trial `{trial.id}`", final, error) from error
        self._trials[trial.id] = trial

    def _table(self, trial: Trial, name: str, schema: dict[str, Any]) -> pl.DataFrame:
        import polars as pl

        file = self.path / _TRIALS / trial.id / f"{name}.parquet"
        if not file.is_file():
            return pl.DataFrame(schema=schema)
        try:
            return pl.read_parquet(file)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise MachineError(f"the {name} of trial `{trial.id}` cannot be read: {error}", at=str(file)) from error


def create(path: Path | str, spec: Spec, provenance: dict[str, Any]) -> Results:
    """Begin a result folder.

    path  must not exist, or be empty.

    Raises SpecError if there is something already, MachineError if it cannot be written.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        hint = "`--resume` continues it; or name a folder that does not exist" if (path / _RUN).is_file() else None
        raise SpecError(f"`{path}` exists and is not an empty folder", hint=hint or "name a folder that does not exist")
    run = {
        "schema_version": SCHEMA_VERSION,
        "metrics_version": METRICS_VERSION,
        "spec": spec_to_json(spec),
        "spec_id": spec.id,
        "seed": spec.seed,
        "provenance": provenance,
    }
    try:
        (path / _TRIALS).mkdir(parents=True)
    except OSError as error:
        raise _not_written("the result folder", path, error) from error
    _write_json(path / _RUN, run)
    return Results(path, spec, {**provenance, "metrics_version": METRICS_VERSION})


def exchange_schema() -> dict[str, Any]:
    """Columns of exchanges. A time of 0 means that it did not come to that."""
    import polars as pl

    times = dict.fromkeys(("due_ns", "sent_ns", "acked_ns", "done_ns"), pl.UInt64)
    return {**times, "outcome": pl.String, "held": pl.Boolean, "connection": pl.UInt16}


def frame_schema() -> dict[str, Any]:
    """Columns of frames. The first two are instants, the other times are spans."""
    import polars as pl

    times = ("started_ns", "done_ns", "decode_ns", "preprocess_ns", "inference_ns", "postprocess_ns")
    return {**dict.fromkeys(times, pl.UInt64), "detections": pl.UInt32}


def sensor_schema() -> dict[str, Any]:
    """Columns of sensors. The unit of a value is that of its metric."""
    import polars as pl

    return {"at_ns": pl.UInt64, "metric": pl.String, "where": pl.String, "value": pl.Float64}


def sensor_table(samples: Iterable[Sample]) -> pl.DataFrame:
    """Samples as a table, in the order of their time."""
    import polars as pl

    rows = [(sample.at_ns, sample.metric, sample.where, float(sample.value)) for sample in samples]
    return pl.DataFrame(rows, schema=sensor_schema(), orient="row").sort("at_ns", maintain_order=True)


def read_samples(path: Path) -> pl.DataFrame:
    """The exchanges in a samples file of the engine. Raises MachineError if it is of another version or damaged."""
    import numpy as np
    import polars as pl

    times = [(name, "<u8") for name in ("due_ns", "sent_ns", "acked_ns", "done_ns")]
    record = np.dtype([*times, ("outcome", "u1"), ("held", "u1"), ("connection", "<u2"), ("zero", "<u4")])
    content = path.read_bytes()
    _check_header(content, record.itemsize, path)
    rows = np.frombuffer(content, dtype=record, offset=_HEADER_BYTES)
    outcomes = rows["outcome"]
    if outcomes.size and outcomes.max() >= len(OUTCOMES):
        raise MachineError(f"the samples have an outcome `{outcomes.max()}` that is not known", at=str(path))
    columns = {name: np.ascontiguousarray(rows[name]) for name, _ in times}
    return pl.DataFrame(
        {
            **columns,
            "outcome": np.array(OUTCOMES)[outcomes],
            "held": rows["held"] != 0,
            "connection": np.ascontiguousarray(rows["connection"]),
        },
        schema=exchange_schema(),
    )


# crates/wire/src/record.rs: eight bytes of name, version and size of a record, each a u32.
_HEADER_BYTES = 16
_SAMPLES_VERSION = 1


def _check_header(content: bytes, record_bytes: int, path: Path) -> None:
    name, version = content[:8], int.from_bytes(content[8:12], "little")
    if len(content) < _HEADER_BYTES or name != b"ctsample":
        raise MachineError("this is not a samples file of the engine", at=str(path))
    if version != _SAMPLES_VERSION or int.from_bytes(content[12:16], "little") != record_bytes:
        raise MachineError(
            f"the samples are of version `{version}`, this build reads version `{_SAMPLES_VERSION}`",
            at=str(path),
            hint="use the `ciphertoll` and `ciphertoll-engine` of one release",
        )
    if (len(content) - _HEADER_BYTES) % record_bytes:
        raise MachineError("the samples end within a record", at=str(path))


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """A Spec as JSON values; `spec_from_json` gives back one that is equal and has the same id."""
    content: dict[str, Any] = encode(spec)
    return content


def spec_from_json(content: Any) -> Spec:
    """The Spec that `spec_to_json` wrote. Raises SpecError for a field that is unknown, missing or of another type."""
    return decode(Spec, content)


def encode(value: Any) -> Any:
    """A noun of `model.py` as JSON values; which variant of a union it is stands in its `kind`."""
    if dataclasses.is_dataclass(value):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], content: Any, at: str = "") -> T:
    """The inverse of `encode`. at names the place in messages."""
    where = at or kind.__name__.lower()
    value: T = _decode(kind, content, where)
    return value


def _decode(kind: Any, content: Any, at: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return content
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, content, at)
    if origin is typing.Literal:
        if content not in arguments:
            raise SpecError(f"`{content}` is not accepted", at=at, accepted=[str(name) for name in arguments])
        return content
    if origin is tuple:
        return _decode_tuple(arguments, content, at)
    if origin is dict:
        return _checked(dict, content, at)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, content, at)
    return _checked(kind, content, at)


def _decode_union(variants: tuple[Any, ...], content: Any, at: str) -> Any:
    if content is None and types.NoneType in variants:
        return None
    named = [variant for variant in variants if variant is not types.NoneType]
    if len(named) == 1:
        return _decode(named[0], content, at)
    by_kind = {
        item.default: variant for variant in named for item in dataclasses.fields(variant) if item.name == "kind"
    }
    kind = _checked(dict, content, at).get("kind")
    if kind not in by_kind:
        raise SpecError(f"kind `{kind}` is unknown", at=at, accepted=[str(name) for name in by_kind])
    return _decode(by_kind[kind], content, at)


def _decode_tuple(arguments: tuple[Any, ...], content: Any, at: str) -> Any:
    items = _checked(list, content, at)
    kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(items):
        raise SpecError(f"{len(items)} values where {len(kinds)} belong", at=at)
    return tuple(_decode(kind, item, f"{at}[{n}]") for n, (kind, item) in enumerate(zip(kinds, items, strict=True)))


def _decode_fields(kind: Any, content: Any, at: str) -> Any:
    hints = typing.get_type_hints(kind)
    given = _checked(dict, content, at)
    if unknown := sorted(set(given) - set(hints)):
        raise SpecError(f"field `{unknown[0]}` is unknown", at=at, accepted=sorted(hints))
    if missing := sorted(set(hints) - set(given)):
        raise SpecError(f"field `{missing[0]}` is missing", at=at)
    return kind(**{name: _decode(hints[name], value, f"{at}.{name}") for name, value in given.items()})


def _checked(kind: Any, value: Any, at: str) -> Any:
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise SpecError(f"`{value}` is not of type {kind.__name__}", at=at)
    return value


def _decoded(kind: type[T], content: Any, file: Path) -> T:
    """What a file of ours holds: damage is not the user's spelling."""
    try:
        return decode(kind, content)
    except SpecError as error:
        raise MachineError(f"the file is damaged: {error.what}", at=f"{file} ({error.at})") from error


def _check_version(run: Any, path: Path) -> None:
    found = run.get("schema_version") if isinstance(run, dict) else None
    if found != SCHEMA_VERSION:
        raise MachineError(
            f"the results are of schema version `{found}`, this build reads version `{SCHEMA_VERSION}`",
            at=str(path / _RUN),
            hint="read them with the release that wrote them",
        )


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise MachineError(f"the file cannot be read: {error.strerror or error}", at=str(file)) from error
    except ValueError as error:
        raise MachineError(f"the file is damaged: {error}", at=str(file)) from error


def _write_json(file: Path, content: Any) -> None:
    """Write a file that appears whole or not at all."""
    part = file.with_name(f".partial-{file.name}")
    try:
        _write(part, _text(content))
        part.rename(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _not_written(f"`{file.name}`", file, error) from error


def _text(content: Any) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _parquet(table: pl.DataFrame) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _write(file: Path, content: bytes) -> None:
    """Write and wait for the disk: a power cut must not leave a trial that appeared and is empty."""
    with file.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def _not_written(what: str, at: Path, error: OSError) -> MachineError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space, then `--resume`: trials that landed before are safe" if full else None
    return MachineError(f"{what} cannot be written: {error.strerror or error}", at=str(at), hint=hint)
