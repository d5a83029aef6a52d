"""What a user asks for: from presets, TOML and options to a Spec.

settings.py   every setting once: key, option, how it is read
values.py     how single values are read
names.py      names of protocols, suites, groups, .. and which go together
presets.py    `quick` and `paper`
document.py   TOML, with line numbers
channels.py   the product of the channel axes
build.py      layers over each other, limits, cells
"""

from ciphertoll.spec.build import build, measured_ns
from ciphertoll.spec.channels import Offer, channels, lacks
from ciphertoll.spec.document import read
from ciphertoll.spec.presets import DESCRIPTIONS, PRESETS
from ciphertoll.spec.settings import BY_KEY, SETTINGS, Choices, Given, Setting

__all__ = [
    "BY_KEY",
    "DESCRIPTIONS",
    "PRESETS",
    "SETTINGS",
    "Choices",
    "Given",
    "Offer",
    "Setting",
    "build",
    "channels",
    "lacks",
    "measured_ns",
    "read",
]
