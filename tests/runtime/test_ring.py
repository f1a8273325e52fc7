"""Losses on their way from a device: in order, each once, and nobody waits without need."""

from __future__ import annotations

import torch

from notebook_accel.runtime.live import RING_SIZE, Ring


class Device:
    """Work that is issued now and done later; how often somebody waited for it."""

    def __init__(self) -> None:
        self.issued = self.done = self.waits = 0
        self.ring = Ring(torch.device("cpu"), lambda: Mark(self))

    def put(self, number: int) -> list[tuple[str, int, float]]:
        return self.ring.put("loss", number, torch.tensor(number / 10))


class Mark:
    """A place in the work of a device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.device.issued += 1
        self.place = self.device.issued

    def query(self) -> bool:
        return self.device.done >= self.place

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.done = max(self.device.done, self.place)


def points(numbers: range) -> list[tuple[str, int, float]]:
    return [("loss", n, torch.tensor(n / 10).item()) for n in numbers]


def test_a_number_is_read_once_it_has_arrived() -> None:
    device = Device()
    for number in range(5):
        assert device.put(number) == []
    assert device.ring.take(wait=False) == [], "nothing is done yet"
    device.done = 2
    assert device.ring.take(wait=False) == points(range(2))
    assert device.ring.take(wait=False) == [], "each comes once"
    device.done = 5
    assert device.ring.take(wait=False) == points(range(2, 5))
    assert device.waits == 0


def test_places_are_used_again_for_ever() -> None:
    device = Device()
    seen = []
    for number in range(5 * RING_SIZE):
        seen += device.put(number)
        device.done = max(0, device.issued - 10)  # ten steps behind
        seen += device.ring.take(wait=False)
    assert device.waits == 0
    seen += device.ring.take(wait=True)
    assert seen == points(range(5 * RING_SIZE))
    assert device.waits == 1


def test_only_a_full_ring_waits_and_loses_nothing() -> None:
    device = Device()
    for number in range(RING_SIZE):
        assert device.put(number) == []
    assert device.waits == 0
    assert device.put(RING_SIZE) == points(range(RING_SIZE))
    assert device.waits == 1
    assert device.ring.take(wait=True) == points(range(RING_SIZE, RING_SIZE + 1))
    assert device.ring.take(wait=True) == [], "an empty ring has nothing to wait for"
    assert device.waits == 2
