"""`ciphertoll serve`: the embedded servers, for runs on other machines."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ciphertoll.cli import token
from ciphertoll.cli.options import choices
from ciphertoll.errors import EXIT_DONE, MachineError, SpecError
from ciphertoll.spec import build, lacks, read

if TYPE_CHECKING:
    from ciphertoll.engine import Listening

_READY_TIMEOUT_S = 30.0


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C, which is the way to end it."""
    from ciphertoll import engine

    offer = engine.channels()
    layers = [read(Path(arguments.spec))] if arguments.spec else []
    spec = build(*layers, choices(arguments), offer=offer)
    wanted = dict.fromkeys(cell.channel for cell in spec.cells if cell.channel is not None)
    served = [channel for channel in wanted if lacks(channel, offer) is None]
    if not served:
        raise SpecError("this build of the engine can serve none of these channels", hint="see `ciphertoll channels`")
    if not 0 <= arguments.port <= 65_536 - len(served):
        raise SpecError(f"port `{arguments.port}` leaves no room for {len(served)} ports", at="--port")
    names = arguments.name or own_names()
    ports = [arguments.port + index if arguments.port else 0 for index in range(len(served))]
    server = engine.Server.start(
        list(zip(served, ports, strict=True)), arguments.bind, names, spec.cells[0].device.server_cpus
    )
    try:
        listeners = server.wait_ready(_READY_TIMEOUT_S)
        token.write(Path(arguments.out), names, listeners)
        _explain(arguments, names, listeners)
        while server.alive():
            time.sleep(1.0)
        raise MachineError("the server ended unexpectedly")
    except KeyboardInterrupt:
        return EXIT_DONE
    finally:
        server.stop()


def own_names() -> list[str]:
    """Names and addresses of this machine, for its certificates; the one that others most likely use comes first."""
    names = [socket.gethostname()]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which address would be used
        names.append(probe.getsockname()[0])
    return list(dict.fromkeys([*names, "localhost", "127.0.0.1"]))


def _explain(arguments: argparse.Namespace, names: Sequence[str], listeners: Sequence[Listening]) -> None:
    out = arguments.out
    ports = "".join(f"  port {one.port}: {one.channel.label}\n" for one in listeners)
    sys.stderr.write(
        f"serving {len(listeners)} channels on {arguments.bind}, as {', '.join(names)}\n{ports}"
        f"copy `{out}` to the device, and there:\n"
        f"  ciphertoll run --server {names[0]} --token {Path(out).name}\n"
        "everything that arrives is echoed: serve in a network that you trust; Ctrl-C ends it\n"
    )
    sys.stderr.flush()
