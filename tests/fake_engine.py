"""Programs that pretend to be the engine, one misbehaviour each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ciphertoll import engine
from ciphertoll.errors import MachineError

_HELLO = '{"event":"hello","version":1,"engine":"0.1.0","features":[],"pid":1}'
_MOODY = _HELLO[:-1] + ',"mood":1}'
_READY = '{"event":"ready","listeners":[{"channel":{"protocol":"http","http":"1.1"},"port":9,"ca_pem":null}]}'
_STARTED = '{"event":"started","from_ns":1,"measure_from_ns":2,"measure_to_ns":3}'
_COUNTS = '{"due":0,"done":0,"timed_out":0,"closed":0,"refused":0,"corrupt":0,"unfinished":0,"held":0}'
_FINISHED = (
    '{"event":"finished","outcome":"%s","reason":"in words","counts":' + _COUNTS + ',"records":0,'
    '"usage":{"threads":[],"peak_rss_bytes":1}}'
)
_REFUSED = '{"event":"refused","what":"suite `X` is unknown","at":"channel.suite","accepted":["Y"],"hint":"try Y"}'
_FOREVER = "time.sleep(60)"

BEHAVIOURS = {
    "vanishes": [f"say({_HELLO!r})", f"say({_STARTED!r})", "print('out of luck', file=sys.stderr)", "sys.exit(9)"],
    "is killed": [f"say({_HELLO!r})", "os.kill(os.getpid(), 9)"],
    "says garbage": [f"say({_HELLO!r})", "say('Segmentation fault')", _FOREVER],
    "is never ready": [f"say({_HELLO!r})", _FOREVER],
    "says nothing": [_FOREVER],
    "refuses": [f"say({_HELLO!r})", f"say({_REFUSED!r})", "sys.exit(2)"],
    "is of another version": ["""say('{"event":"hello","version":2,"engine":"9.9.9","news":[]}')""", _FOREVER],
    "forgets hello": [f"say({_READY!r})", _FOREVER],
    "has a field too many": [f"say({_MOODY!r})", _FOREVER],
    "has an event too many": [f"say({_HELLO!r})", """say('{"event":"mood"}')""", _FOREVER],
    "is unreachable": [f"say({_HELLO!r})", f"say({_FINISHED % 'unreachable'!r})", "sys.exit(3)"],
    "serves": [f"say({_HELLO!r})", f"say({_READY!r})", "signal.pause()"],
}


def write(folder: Path, behaviour: str, *, serves: bool = False) -> Path:
    """A program with one of BEHAVIOURS. serves: it misbehaves as a client only, and as a server seems to listen."""
    body = "\n    ".join(BEHAVIOURS[behaviour])
    server = "\n    ".join(BEHAVIOURS["serves"] if serves else BEHAVIOURS[behaviour])
    program = folder / "fake-engine"
    program.write_text(
        f"#!{sys.executable} -I\nimport os, signal, sys, time\n"
        "def say(line):\n    print(line, flush=True)\n"
        "if sys.argv[1] == '--version':\n    say('ciphertoll-engine 0.1.0')\n    sys.exit()\n"
        f"sys.stdin.readline()\nif sys.argv[1] == 'serve':\n    {server}\nelse:\n    {body}\n"
    )
    program.chmod(0o755)
    return program


def is_installed() -> bool:
    """Whether there is a real engine."""
    try:
        engine.find()
    except MachineError:
        return False
    return True


real = pytest.mark.skipif(not is_installed(), reason="no ciphertoll-engine; CIPHERTOLL_ENGINE can name one")
