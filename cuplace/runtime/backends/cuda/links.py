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
from cuplace.runtime.backends.cuda.lane import synchronize
from cuplace.runtime.backends.cuda.probe import pattern, pattern_sum

if TYPE_CHECKING:
    from cuplace.runtime.backends.cuda.gpu import Gpu
    from cuplace.runtime.backends.cuda.host import HostCopies
    from cuplace.runtime.backends.cuda.stream import CudaStream

PROBE_WORDS = 1 << 15  # 256 KiB: many packets of any link

_ALREADY_ENABLED = 704


class Links:
    """The paths between the GPUs of a platform.

    Attributes:
        paths: ``peer`` or ``staged`` for each (source, target) pair of ordinals that was used.
        reasons: why a pair is staged.
    """

    def __init__(self, host: HostCopies) -> None:
        self.paths: dict[tuple[int, int], str] = {}
        self.reasons: dict[tuple[int, int], str] = {}
        self._host = host

    def path(self, source: Gpu, target: Gpu, departure: CudaStream, arrival: CudaStream) -> str:
        """How copies from ``source`` to ``target`` travel. At the first use of the pair it is probed on the two
        streams, which waits for them."""
        pair = (source.ordinal, target.ordinal)
        if pair not in self.paths:
            reason = self._enable(source, target) or self._probe(source, target, departure, arrival)
            if reason:
                self.reasons[pair] = reason
            self.paths[pair] = "staged" if reason else "peer"
        return self.paths[pair]

    def _enable(self, source: Gpu, target: Gpu) -> str:
        for gpu, peer in ((source, target), (target, source)):
            if not runtime.deviceCanAccessPeer(gpu.ordinal, peer.ordinal):
                return f"GPU {gpu.ordinal} cannot access the memory of GPU {peer.ordinal}"
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
        runtime.memcpyPeerAsync(
            received.data.ptr, target.ordinal, sent.data.ptr, source.ordinal, sent.nbytes, out.ptr
        )  # fmt: skip
        copied = out.record(departure, 0)
        into.wait(copied)
        kernels.checksum(into, received.data.ptr, PROBE_WORDS, total.data.ptr)
        synchronize(copied)  # before the memory is dropped
        got = int(self._host.download(arrival, total)[0])
        if got == pattern_sum(pattern(PROBE_WORDS, seed)):
            return ""
        return "a pattern that was sent by peer access did not arrive"
