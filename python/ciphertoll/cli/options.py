"""The command line: what `--help` says and what the options mean. Options of a Spec follow the table of settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

import ciphertoll
from ciphertoll.errors import SpecError, unknown
from ciphertoll.spec import SETTINGS, Given, Setting

_ABOUT = "What your secure channel costs your model, on your device, over your network, and which one to use."

_EXAMPLES = """\
examples:
  ciphertoll run                                   12 secured channels beside a detector, about 6 minutes
  ciphertoll run --protocol https,h3 --suite chacha20 --rate 100 --size 2048 --duration 20s --blocks 8
  ciphertoll run --preset paper                    the published experiment, many hours
  ciphertoll run --model yolo11n.onnx --video street.mp4
  ciphertoll run edge.toml                         a spec of your own
  ciphertoll run --resume results/20260101T120000Z-quick
  ciphertoll report results/20260101T120000Z-quick --html report.html

exit codes: 0 done, 1 a verdict is `worse` (with --gate), 2 the spec or an option is wrong, 3 the machine is not
fit, 4 a bug of ours, 130 interrupted
"""

_SERVE_EXAMPLES = """\
examples:
  on the other machine:   ciphertoll serve --name bench.local --out server.token
  copy the token here:    scp bench.local:server.token .
  on the device:          ciphertoll run --server bench.local --token server.token

The token holds names, ports and the certificate of a private authority that lives as long as the server; it holds
no secret. A server for other channels than the default is started with the same channel options as the run.
"""

# Which heading of `--help` an option stands under, by the table of its key.
_GROUPS = {
    "channel": "channel (a list is an axis: every combination is measured)",
    "load": "load",
    "workload": "workload",
    "device": "device",
    "server": "server on another machine",
    "": "plan",
}


class Parser(argparse.ArgumentParser):
    """Reports what is wrong as a SpecError."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(message, hint=f"`{self.prog} --help` shows what there is")


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="ciphertoll",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"ciphertoll {ciphertoll.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    _add_serve(commands)
    _add_report(commands)
    for name, about in (
        ("doctor", "say what this machine has, what is missing, and whether it is fit to measure now"),
        ("channels", "list the channels that this build of the engine can do"),
        ("presets", "list the presets"),
    ):
        _add(commands, name, about).add_argument("--json", action="store_true", help="as JSON")
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, and as `argv` what they came from.

    Raises SpecError, with the nearest name, for a command or an option that does not exist.
    """
    whole = parser()
    commands = ("run", "serve", "report", "doctor", "channels", "presets")
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        raise unknown("command", argv[0], commands)
    found, rest = whole.parse_known_args(argv)
    if rest:
        known = sorted(option for option in _options_of(whole, found.command) if option.startswith("--"))
        if rest[0].startswith("-"):
            error = unknown("option", rest[0].partition("=")[0], known)
            raise SpecError(
                error.what,
                hint=error.hint or f"`{' '.join(filter(None, ('ciphertoll', found.command)))} --help` lists them",
            )
        raise SpecError(f"argument `{rest[0]}` is one too many")
    found.argv = list(argv)
    return found


def choices(arguments: argparse.Namespace) -> dict[str, Given]:
    """What was chosen on the command line, by key."""
    found = {}
    for setting in SETTINGS:
        value = getattr(arguments, _destination(setting), None) if setting.option else None
        if value is not None and setting.option:
            found[setting.key] = Given(setting.read(value, setting.option), setting.option, 2)
    return found


def _add(commands: Any, name: str, about: str, **options: Any) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **options,
    )
    added.add_argument("--debug", action="store_true", help="show where an error of ours comes from")
    return added


def _add_run(commands: Any) -> None:
    run = _add(commands, "run", "measure: run what a spec, a preset and options ask for, and report", epilog=_EXAMPLES)
    run.add_argument("spec", nargs="?", metavar="SPEC", help="a TOML file (docs/spec.md); options go over it")
    run.add_argument("--out", metavar="DIR", help="result folder; default: results/<UTC time>-<name>")
    run.add_argument("--resume", metavar="DIR", help="go on with a result folder, under the spec it was started with")
    run.add_argument("--quiet", action="store_true", help="no progress, only the result")
    _add_formats(run)
    _add_settings(run, SETTINGS)


def _add_serve(commands: Any) -> None:
    about = "be the servers for runs on other machines, until Ctrl-C"
    serve = _add(commands, "serve", about, epilog=_SERVE_EXAMPLES)
    serve.add_argument("spec", nargs="?", metavar="SPEC", help="a TOML file whose channels are served")
    serve.add_argument("--bind", metavar="ADDRESS", default="0.0.0.0", help="default: every IPv4 address")
    serve.add_argument(
        "--name", action="append", metavar="NAME", help="a name or address under which clients come; may be repeated"
    )
    serve.add_argument(
        "--port", type=int, metavar="N", default=0, help="first of consecutive ports; default: free ones"
    )
    serve.add_argument("--out", metavar="FILE", default="server.token", help="the token; default: server.token")
    _add_settings(
        serve, [s for s in SETTINGS if s.key.startswith("channel.") or s.key in ("preset", "device.server_cpus")]
    )


def _add_report(commands: Any) -> None:
    report = _add(commands, "report", "report what a result folder holds")
    report.add_argument("folder", metavar="DIR", help="a result folder")
    report.add_argument("--html", metavar="FILE", help="also write the page")
    _add_formats(report)


def _add_formats(command: argparse.ArgumentParser) -> None:
    command.add_argument("--gate", action="store_true", help="exit with 1 if a verdict is `worse`")
    formats = command.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print the result as JSON")
    formats.add_argument("--csv", action="store_true", help="print the result as CSV")


def _add_settings(command: argparse.ArgumentParser, settings: Sequence[Setting]) -> None:
    groups: dict[str, Any] = {}
    for setting in settings:
        if setting.option is None:
            continue
        table = setting.key.rpartition(".")[0]
        group = groups.setdefault(table, command.add_argument_group(_GROUPS[table]))
        common = {"dest": _destination(setting), "help": setting.help, "default": None}
        if setting.metavar is None:
            group.add_argument(setting.option, action=argparse.BooleanOptionalAction, **common)
        elif setting.key == "workload.kind":
            group.add_argument(setting.option, action="append", metavar=setting.metavar, **common)
        else:
            group.add_argument(setting.option, metavar=setting.metavar, **common)


def _destination(setting: Setting) -> str:
    return f"set:{setting.key}"


def _options_of(whole: argparse.ArgumentParser, command: str | None) -> list[str]:
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            return list(action.choices[command]._option_string_actions)
    return list(whole._option_string_actions)
