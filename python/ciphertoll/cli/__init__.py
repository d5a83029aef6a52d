"""The command line. Everything that a user can cause ends in a message and an exit code, never in a traceback."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ciphertoll.cli.options import parse, parser
from ciphertoll.errors import EXIT_BUG, EXIT_DONE, CiphertollError

EXIT_INTERRUPTED = 130
_SAME_SIGNAL_S = 0.5


def main(argv: Sequence[str] | None = None, **parts: Any) -> int:
    """Run `ciphertoll` with the arguments `argv` and return its exit code.

    parts   what `run` is given in the place of its own: `sense`, for tests.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = argparse.Namespace(debug="--debug" in words)
    try:
        _listen_to_signals()
        arguments = parse(words)
        return _command(arguments, parts)
    except CiphertollError as error:
        _say(error.render())
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone: as with `ciphertoll report DIR | head`. Nothing may be flushed to it later.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except Exception as error:
        return _bug(error, arguments)


def _command(arguments: argparse.Namespace, parts: dict[str, Any]) -> int:
    """Import only what the command needs."""
    if arguments.command == "run":
        from ciphertoll.cli.run import run

        return run(arguments, **parts)
    if arguments.command == "serve":
        from ciphertoll.cli.serve import serve

        return serve(arguments)
    if arguments.command is None:
        parser().print_help()
        return EXIT_DONE
    from ciphertoll.cli import show

    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "report": show.report,
        "doctor": show.doctor,
        "channels": show.channels,
        "presets": show.presets,
    }
    return commands[arguments.command](arguments)


def _listen_to_signals() -> None:
    """The first signal lets what is under way end and be cleared away, a second one ends at once.

    Two within half a second are one: `timeout` and some terminals signal the process and its whole group.
    What runs in child processes then ends by itself: each notices that its parent is gone.
    """

    def first(*_: object) -> NoReturn:
        began = time.monotonic()

        def second(*_: object) -> None:
            if time.monotonic() - began > _SAME_SIGNAL_S:
                os._exit(EXIT_INTERRUPTED)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, second)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a lost terminal is no reason to end
            signal.signal(number, first)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _bug(error: Exception, arguments: argparse.Namespace) -> int:
    _say(f"error: internal: {type(error).__name__}: {error}")
    trace = traceback.format_exc()
    if getattr(arguments, "debug", False):
        _say(trace)
    else:
        _say("  hint: --debug shows where; please report it with the command line and what `ciphertoll doctor` prints")
    return EXIT_BUG
