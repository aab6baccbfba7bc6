"""Links: by which path each GPU reaches each other one, found out at the first use of the pair.

A pair with peer access is not trusted before it has shown that it delivers: on some machines (an IOMMU or a switch
that is set up wrongly) peer copies succeed and deliver zeros. So a pattern is sent once and its checksum compared.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import cupy
import numpy as np
from cupy.cuda import runtime

from cuplace.runtime.backends.cuda import kernels
from cuplace.runtime.backends.cuda.probe import pattern, pattern_sum
from cuplace.runtime.backends.interrupts import Uninterrupted
from cuplace.runtime.faults import NO_FAULTS
from cuplace.runtime.presets import HGX_H200
from cuplace.runtime.topology import LOCAL, PEER, STAGED, Topology

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.host import HostCopies
    from cuplace.runtime.backends.cuda.stream import CudaStream

LOST = "a pattern that was sent by peer access did not arrive"

PROBE_WORDS = 1 << 15  # 256 KiB: many packets of any link

_ALREADY_ENABLED = 704


class Links:
    """The paths between the GPUs of a platform.

    Attributes:
        topology: the paths as far as they are known; nothing is known of speeds.
        paths: ``peer`` or ``staged`` for each (source, target) pair of ordinals that was used.
        reasons: why a pair is staged.
        faults: what is wrong on demand.
    """

    def __init__(self, host: HostCopies) -> None:
        self.paths: dict[tuple[int, int], str] = {}
        self.topology = Topology(HGX_H200, False, self._expected_path, self._trust)
        self.reasons: dict[tuple[int, int], str] = {}
        self.faults = NO_FAULTS
        self._host = host

    def forget(self) -> None:
        """Find out paths anew."""
        self.paths.clear()
        self.reasons.clear()

    def path(self, source: Gpu, target: Gpu, departure: CudaStream, arrival: CudaStream) -> str:
        """How copies from ``source`` to ``target`` travel. At the first use of the pair it is probed on the two
        streams, which waits for them."""
        pair = (source.ordinal, target.ordinal)
        if pair not in self.paths:
            with Uninterrupted():  # else memory could be dropped that the probe still uses
                reason = self._enable(source, target) or self._probe(source, target, departure, arrival)
                if reason:
                    self.reasons[pair] = reason
                self.paths[pair] = STAGED if reason else PEER
        return self.paths[pair]

    def _expected_path(self, source: int, target: int) -> str:
        """The path of a pair that was used; of others, the one that it has if its first copy arrives."""
        if source == target:
            return LOCAL
        found = self.paths.get((source, target))
        if found is not None:
            return found
        try:
            return STAGED if self._missing_access(source, target) else PEER
        except runtime.CUDARuntimeError:  # a GPU is lost; who uses it is told
            return PEER

    def _trust(self, source: int, target: int) -> bool | None:
        if self.paths.get((source, target)) == PEER:
            return True
        return False if self.reasons.get((source, target)) == LOST else None

    def _missing_access(self, source: int, target: int) -> str:
        if self.faults.lacks_peer(source, target):
            return f"GPU {source} and GPU {target} are not to reach each other, on demand"
        for gpu, peer in ((source, target), (target, source)):
            if not runtime.deviceCanAccessPeer(gpu, peer):
                return f"GPU {gpu} cannot access the memory of GPU {peer}"
        return ""

    def _enable(self, source: Gpu, target: Gpu) -> str:
        missing = self._missing_access(source.ordinal, target.ordinal)
        if missing:
            return missing
        for gpu, peer in ((source, target), (target, source)):
            try:
                with gpu.device:
                    runtime.deviceEnablePeerAccess(peer.ordinal)
            except runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    return f"peer access could not be enabled: {error}"
        return ""

    def _probe(self, source: Gpu, target: Gpu, departure: CudaStream, arrival: CudaStream) -> str:
        seed = random.getrandbits(62)
        out, into = departure.lane, arrival.lane
        with out.device, out.on:
            sent = cupy.empty(PROBE_WORDS, np.uint64)
        with into.device, into.on:
            received = cupy.zeros(PROBE_WORDS, np.uint64)
            total = cupy.zeros(1, np.uint64)
        kernels.fill(out, sent.data.ptr, PROBE_WORDS, seed)
        out.wait(into.record(arrival, 0))
        if not self.faults.corrupts(source.ordinal, target.ordinal):  # else the zeros that are there are what arrives
            runtime.memcpyPeerAsync(
                received.data.ptr, target.ordinal, sent.data.ptr, source.ordinal, sent.nbytes, out.ptr
            )  # fmt: skip
        copied = out.record(departure, 0)
        into.wait(copied)  # and so does what uses the memory after it was dropped
        kernels.checksum(into, received.data.ptr, PROBE_WORDS, total.data.ptr)
        got = int(self._host.download(arrival, total)[0])
        if got == pattern_sum(pattern(PROBE_WORDS, seed)):
            return ""
        return LOST
