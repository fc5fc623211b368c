"""A zoo of PyTorch datasets: images, audio, text, tables and record files, and what carries them to the device.

Import from the rooms: ``bestiary.images``, ``bestiary.audio``, ``bestiary.text``, ``bestiary.tables``,
``bestiary.records``, ``bestiary.files`` and ``bestiary.loading``. This module imports nothing.
"""

__version__ = "0.1.0"
