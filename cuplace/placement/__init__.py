"""Where arrays live: meshes, specs, shardings, box arithmetic, the commitment rule.

Everything here is a pure value: immutable, and interned, so that equal values are one object and comparing or hashing
costs nothing. Nothing here knows how a device works, nor touches a driver.
"""

from __future__ import annotations
