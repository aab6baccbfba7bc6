"""Fluid: work in progress that shares what it uses, each piece getting its fair part."""

from __future__ import annotations

from collections.abc import Iterable


class Resource:
    """Something that has so much to give a second: a link its bytes, a GPU its time."""

    __slots__ = ("name", "capacity", "flows")

    def __init__(self, name: str, capacity: float) -> None:
        self.name = name
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}  # in order of arrival, so that nothing depends on hashes

    def __repr__(self) -> str:
        return f"Resource({self.name!r}, {self.capacity:g})"


Uses = tuple[tuple[Resource, float], ...]
"""What each unit of a piece of work takes of which resources."""


class Flow:
    """A piece of work in progress.

    Attributes:
        left: how many units of it are still to be done, as of ``since``.
        uses: what a unit takes.
        weight: how many units it gets for each unit of another flow of weight 1, where they share fairly.
        most: the most units a second it can take.
        rate: the units a second that it gets now.
    """

    __slots__ = ("left", "uses", "weight", "most", "rate", "since", "version", "owner")

    def __init__(self, units: float, uses: Uses, weight: float, most: float, owner: object) -> None:
        self.left = units
        self.uses = uses
        self.weight = weight
        self.most = most
        self.rate = 0.0
        self.since = 0.0
        self.version = 0
        self.owner = owner

    def start(self, now: float) -> list[Flow]:
        """Begin; the flows whose rates changed, itself among them."""
        self.since = now
        for resource, _ in self.uses:
            resource.flows[self] = None
        return share(_together([self]), now)

    def end(self, now: float) -> list[Flow]:
        """Leave; the flows whose rates changed."""
        for resource, _ in self.uses:
            del resource.flows[self]
        return share(_together(flow for resource, _ in self.uses for flow in resource.flows), now)

    def end_time(self) -> float:
        """When it is done if its rate stays."""
        return self.since + self.left / self.rate


def share(flows: list[Flow], now: float) -> list[Flow]:
    """Give flows their fair rates from ``now`` on; those that got another rate."""
    changed = []
    for flow, rate in zip(flows, fair_rates(flows), strict=True):
        if rate != flow.rate:
            flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
            flow.since = now
            flow.rate = rate
            flow.version += 1
            changed.append(flow)
    return changed


def fair_rates(flows: list[Flow]) -> list[float]:
    """Max-min fair rates: no flow could have more without another one, which has no more than it, having less.

    All rates grow together, in proportion to their weights, until a resource is used up or a flow has the most that
    it can take; who is bounded by that stays there, and the others go on.

    >>> wide, narrow = Resource("wide", 100.0), Resource("narrow", 20.0)
    >>> one = Flow(1, ((wide, 1.0),), 1.0, 1e9, None)
    >>> two = Flow(1, ((wide, 1.0), (narrow, 1.0)), 1.0, 1e9, None)
    >>> fair_rates([one, two])
    [80.0, 20.0]
    """
    rates = dict.fromkeys(flows, 0.0)
    left = {resource: resource.capacity for flow in flows for resource, _ in flow.uses}
    growing = dict.fromkeys(flows)
    while growing:
        demand: dict[Resource, float] = {}
        for flow in growing:
            for resource, amount in flow.uses:
                demand[resource] = demand.get(resource, 0.0) + amount * flow.weight
        level = min(
            *[left[resource] / needed for resource, needed in demand.items()],
            *[flow.most / flow.weight for flow in growing],
            float("inf"),
        )
        full = {resource for resource, needed in demand.items() if left[resource] / needed <= level}
        for flow in list(growing):
            if flow.most / flow.weight <= level or any(resource in full for resource, _ in flow.uses):
                rates[flow] = level * flow.weight
                del growing[flow]
                for resource, amount in flow.uses:
                    left[resource] = max(0.0, left[resource] - amount * rates[flow])
    return list(rates.values())


def _together(flows: Iterable[Flow]) -> list[Flow]:
    """These flows and all that share something with them, directly or through others."""
    found = dict.fromkeys(flows)
    waiting = list(found)
    while waiting:
        for resource, _ in waiting.pop().uses:
            for flow in resource.flows:
                if flow not in found:
                    found[flow] = None
                    waiting.append(flow)
    return list(found)
