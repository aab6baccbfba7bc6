"""Arrays: their types and dtypes, the Array itself, its shards, and how it meets NumPy and other libraries."""

from __future__ import annotations
