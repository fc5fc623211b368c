"""What is learned from the training rows of a table: columns, vocabularies, means, scales, classes. Saved as JSON.

Applied as it is to validation, test and later files, so that nothing of them leaks into what the model was fitted on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

MISSING, UNKNOWN, FIRST = (
    0,
    1,
    2,
)  # codes of a category: no value, a value that fitting did not see, the first seen value


@dataclass(frozen=True)
class Number:
    """How a numeric column becomes a feature: ``(value - shift) / scale``, a missing value is ``fill`` before that.

    ``indicator`` adds a second feature, 1.0 where the value is missing.
    """

    fill: float = 0.0
    shift: float = 0.0
    scale: float = 1.0
    indicator: bool = False


@dataclass(frozen=True)
class Schema:
    """Everything that turns rows of text into numbers, in the order of the training file's columns.

    Args:
        numbers: for each numeric column how it is filled and scaled.
        categories: for each category its values in code order. Code 0 is a missing value, 1 a value that is not in the
            list, 2 the first value of the list.
        classes: the label's values in the order of their index.
        label: the column with class labels, or None.
        target: the column with a regression value, or None.
        skipped: columns that are left out knowingly.
        fitted_on: the files whose rows were looked at; only for messages.

    >>> schema = Schema(numbers={"age": Number(indicator=True)}, categories={"sex": ["f", "m"]})
    >>> schema.feature_names, schema.sizes
    (['age', 'age is missing'], {'sex': 4})
    """

    numbers: Mapping[str, Number] = field(default_factory=dict)
    categories: Mapping[str, list[str]] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    label: str | None = None
    target: str | None = None
    skipped: list[str] = field(default_factory=list)
    fitted_on: list[str] = field(default_factory=list)

    @property
    def feature_names(self) -> list[str]:
        """Names of the F features: numeric columns, then their indicators."""
        marked = [f"{name} is missing" for name, number in self.numbers.items() if number.indicator]
        return [*self.numbers, *marked]

    @property
    def sizes(self) -> dict[str, int]:
        """For each category the number of its codes: what an embedding needs."""
        return {name: FIRST + len(values) for name, values in self.categories.items()}

    @property
    def columns(self) -> list[str]:
        """The columns that a file must have."""
        asked = [self.label] if self.label is not None else [] if self.target is None else [self.target]
        return [*self.numbers, *self.categories, *asked]

    def without_target(self) -> Schema:
        """Return the same schema for files that have no label and no target: what a trained model is asked about."""
        return replace(self, label=None, target=None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schema as JSON, which a person can read and ``load`` reads back exactly."""
        text = json.dumps(
            {"format": "bestiary table schema 1"} | asdict(self), indent=1, ensure_ascii=False, allow_nan=False
        )
        Path(path).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Schema:
        """Read what ``save`` wrote.

        Raises:
            ValueError: the file holds no schema.
        """
        try:
            found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("format") != "bestiary table schema 1":
                raise ValueError("unknown format")
            found["numbers"] = {name: Number(**values) for name, values in found["numbers"].items()}
            return Schema(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{os.fspath(path)} is no schema of a table ({error}); write one with schema.save"
            ) from error
