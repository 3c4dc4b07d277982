"""Values of GPUs side by side, as columns: what telemetry brings is hundreds of thousands of numbers of few devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyrometer.collect.dcgm import Place

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Sample = tuple[int, "Place", float, int]  # measure, place, value, time in ms


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Of which place and measure, how much, when. Places are numbers into a list, which several may share."""

    places: list[Place]
    place: Integers
    measure: Integers
    value: Numbers
    time_ms: Integers

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Values:
        """The same as rows have it."""
        number_of = {place: number for number, place in enumerate(dict.fromkeys([sample[1] for sample in samples]))}
        return cls(
            list(number_of),
            np.array([number_of[sample[1]] for sample in samples], np.int64),
            np.array([sample[0] for sample in samples], np.int64),
            np.array([sample[2] for sample in samples], float),
            np.array([sample[3] for sample in samples], np.int64),
        )

    @classmethod
    def joined(cls, parts: Iterable[Values]) -> Values:
        """All of them, one after the other, with one list of the places that occur."""
        parts = list(parts)
        if not parts:
            return cls.of([])
        places: list[Place] = []
        begins: dict[int, int] = {}  # of each list that they share, by its identity
        for part in parts:
            if id(part.places) not in begins:
                begins[id(part.places)] = len(places)
                places += part.places
        place = np.concatenate([part.place + begins[id(part.places)] for part in parts])
        occurs = np.zeros(len(places), bool)
        occurs[place] = True
        return cls(
            [places[number] for number in np.flatnonzero(occurs).tolist()],
            (np.cumsum(occurs) - 1)[place],
            np.concatenate([part.measure for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.time_ms for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.place)

    def __iter__(self) -> Iterator[Sample]:
        rows = zip(self.measure.tolist(), self.place.tolist(), self.value.tolist(), self.time_ms.tolist(), strict=True)
        return ((measure, self.places[place], value, time_ms) for measure, place, value, time_ms in rows)

    def only(self, which: npt.NDArray[np.bool_] | Integers) -> Values:
        """Those that a mask or a list of positions names."""
        return Values(
            self.places, self.place[which], self.measure[which], self.value[which], self.time_ms[which]
        )  # fmt: skip
