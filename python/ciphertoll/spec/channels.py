"""From what is chosen for channels to the channels: the product of the axes, without what a protocol cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ciphertoll.errors import SpecError
from ciphertoll.model import SECURED, TWIN_OF, Channel, Coap, Mqtt, Protocol, Security
from ciphertoll.spec import names
from ciphertoll.spec.settings import Choices, Given

# What the engine's `channels` prints: protocol and, where secured, version, suite, group, certificate, library.
Offer = Sequence[Mapping[str, str]]

_HTTP = ("http", "https")
_MQTT = ("mqtt", "mqtts")
_COAP = ("coap", "coaps")
# Settings that only some protocols have.
_ONLY = {
    "channel.http": _HTTP,
    "channel.mqtt_version": _MQTT,
    "channel.qos": _MQTT,
    "channel.coap": _COAP,
    "channel.nstart": _COAP,
    "channel.datagram": _COAP,
}


def channels(choices: Choices, offer: Offer | None = None) -> list[Channel]:
    """Every channel that was chosen, the unprotected first.

    offer    what the engine can do; it decides which library is the default of `coaps`.

    Raises SpecError for a value that no chosen protocol can have, and for a protocol that can have none of the suites.
    """
    protocols: list[Protocol] = choices["channel.protocol"].value
    secured = [one for one in protocols if one in SECURED]
    bare = [one for one in protocols if one not in SECURED]
    if choices["channel.baselines"].value:
        bare += [TWIN_OF[one] for one in secured]
    everything = [*dict.fromkeys(bare), *secured]
    _refuse_idle_settings(choices, everything)
    versions = _versions(choices, secured)
    found: list[Channel] = []
    for protocol in everything:
        securities: Iterable[Security | None] = [None]
        if protocol in SECURED:
            securities = _securities(choices, protocol, versions[protocol], offer)
        settings = list(_settings(choices, protocol))
        found += [Channel(protocol, one, **own) for own, one in product(settings, securities)]
    return found


def lacks(channel: Channel, offer: Offer) -> str | None:
    """Why an engine with this offer cannot do `channel`; None if it can."""
    wanted: dict[str, str] = {"protocol": channel.protocol}
    if channel.security is not None:
        own = channel.security
        wanted |= {"version": own.version, "suite": own.suite, "group": own.group}
        wanted |= {"certificate": own.certificate, "library": own.library}
    rows = [row for row in offer if row["protocol"] == channel.protocol]
    for index, (key, value) in enumerate(wanted.items()):
        if not any(all(row.get(k) == v for k, v in list(wanted.items())[: index + 1]) for row in rows):
            earlier = [f"{v}" for v in list(wanted.values())[:index]]
            return f"this build of the engine has no {key} `{value}`" + (
                f" for {', '.join(earlier)}" if earlier else ""
            )
    return None


def _refuse_idle_settings(choices: Choices, protocols: Sequence[str]) -> None:
    """A setting that was asked for must have a protocol that has it."""
    for key, having in _ONLY.items():
        given = choices[key]
        if given.rank and not set(having) & set(protocols):
            what = key.partition(".")[2].replace("_", " ")
            raise SpecError(
                f"setting `{what}` belongs to {' and '.join(having)}, which are not chosen",
                at=given.at,
                accepted=[f"--protocol {one}" for one in having],
            )
    for key in ("channel.suite", "channel.group", "channel.certificate", "channel.library", "channel.tls"):
        given_one = choices.get(key)
        if given_one and given_one.rank and not set(SECURED) & set(protocols):
            what = key.partition(".")[2]
            raise SpecError(
                f"{what} `{given_one.value[0]}` needs a secured protocol, and none is chosen",
                at=given_one.at,
                accepted=SECURED,
            )


def _chosen(given: Given | None, noun: str, can: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of each protocol, the given values that it can have; none where nothing fits.

    Raises SpecError for a value that no protocol can have.
    """
    values = given.value if given else []
    for value in values:
        if not any(value in accepted for accepted in can.values()):
            protocol, accepted = next(iter(can.items()))
            at = given.at if given else None
            raise SpecError(f"{noun} `{value}` is not offered by protocol `{protocol}`", at=at, accepted=accepted)
    return {protocol: [value for value in values if value in accepted] for protocol, accepted in can.items()}


def _versions(choices: Choices, protocols: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Of each protocol, versions with suites."""
    can = {protocol: names.VERSIONS_OF[protocol] for protocol in protocols}
    asked = _chosen(choices.get("channel.tls"), "version", can)
    suites = choices["channel.suite"]
    found = {
        protocol: list(_version_suites(suites.value, asked[protocol], names.VERSIONS_OF[protocol]))
        for protocol in protocols
    }
    for protocol, pairs in found.items():
        if not pairs:
            raise _no_suite(suites.value[0], protocol, asked[protocol] or names.VERSIONS_OF[protocol], suites.at)
    for suite in suites.value:
        used = any(names.suite_in(suite, version) == iana for pairs in found.values() for version, iana in pairs)
        if protocols and not used:
            protocol = protocols[0]
            raise _no_suite(suite, protocol, asked[protocol] or names.VERSIONS_OF[protocol], suites.at)
    return found


def _version_suites(suites: Sequence[str], asked: Sequence[str], can: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A suite goes with every version that was asked for; if none was, with the first version that has it."""
    for suite in suites:
        having = [(version, iana) for version in (asked or can) if (iana := names.suite_in(suite, version))]
        yield from having if asked else having[:1]


def _no_suite(suite: str, protocol: str, versions: Sequence[str], at: str) -> SpecError:
    accepted = [name for version in versions for name in names.suites_of(version)]
    what = f"suite `{suite}` is not offered by protocol `{protocol}` ({', '.join(versions)})"
    return SpecError(what, at=at, accepted=accepted, hint="`ciphertoll channels` lists what this build can do")


def _securities(
    choices: Choices, protocol: str, versions: Sequence[tuple[str, str]], offer: Offer | None
) -> list[Security]:
    libraries = _libraries(choices, protocol, offer)
    axes = (versions, choices["channel.group"].value, choices["channel.certificate"].value, libraries)
    return [
        Security(version, suite, group, certificate, library)
        for (version, suite), group, certificate, library in product(*axes)
    ]


def _libraries(choices: Choices, protocol: str, offer: Offer | None) -> list[str]:
    """Those that were chosen; else the first one that the engine has."""
    secured = [one for one in choices["channel.protocol"].value if one in SECURED]
    can = {one: names.LIBRARIES_OF[one] for one in secured}
    asked = _chosen(choices.get("channel.library"), "library", can)[protocol]
    if asked:
        return asked
    every = names.LIBRARIES_OF[protocol]
    built_in = {row.get("library") for row in offer or () if row["protocol"] == protocol}
    return [next((one for one in every if one in built_in), every[0])]


def _settings(choices: Choices, protocol: str) -> Iterator[dict[str, Any]]:
    """What belongs to one kind of protocol only, every combination of it."""

    def values(*keys: str) -> Iterator[tuple[Any, ...]]:
        return product(*(choices[f"channel.{key}"].value for key in keys))

    if protocol in _HTTP:
        yield from ({"http": version} for (version,) in values("http"))
    elif protocol in _MQTT:
        yield from ({"mqtt": Mqtt(version, qos)} for version, qos in values("mqtt_version", "qos"))
    elif protocol in _COAP:
        for kind, nstart, datagram in values("coap", "nstart", "datagram"):
            yield {"coap": Coap(kind == "con", nstart, datagram)}
    else:
        yield {}
