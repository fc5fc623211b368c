"""Sound files to float32 samples, their lengths from headers alone, and the transforms that feed a network."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.audio.decode import Audio as Audio
    from bestiary.audio.decode import read_audio as read_audio
    from bestiary.audio.folder import AudioFolder as AudioFolder
    from bestiary.audio.folder import AudioSample as AudioSample
    from bestiary.audio.headers import Header as Header
    from bestiary.audio.headers import read_header as read_header
    from bestiary.audio.manifest import AudioManifest as AudioManifest
    from bestiary.audio.resampling import resample as resample
    from bestiary.audio.spectra import LogMel as LogMel
    from bestiary.audio.spectra import SpecAugment as SpecAugment
    from bestiary.audio.transforms import AddNoise as AddNoise
    from bestiary.audio.transforms import Chain as Chain
    from bestiary.audio.transforms import Gain as Gain
    from bestiary.audio.transforms import PadTo as PadTo
    from bestiary.audio.transforms import RandomCrop as RandomCrop
    from bestiary.audio.transforms import Speed as Speed

# fmt: off
__all__ = [
    "AddNoise", "Audio", "AudioFolder", "AudioManifest", "AudioSample", "Chain", "Gain", "Header", "LogMel", "PadTo", "RandomCrop",
    "SpecAugment", "Speed", "read_audio", "read_header", "resample",
]
# fmt: on
_WHERE = {"Audio": "decode", "AudioFolder": "folder", "AudioManifest": "manifest", "AudioSample": "folder"}
_WHERE |= {"Header": "headers", "LogMel": "spectra", "SpecAugment": "spectra"}
_WHERE |= {"read_audio": "decode", "read_header": "headers", "resample": "resampling"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'transforms')}"), name)


def __dir__() -> list[str]:
    return __all__
