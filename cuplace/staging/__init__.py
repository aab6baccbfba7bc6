"""Staging: tracing functions into programs, placing programs on devices, and running them."""

from __future__ import annotations
