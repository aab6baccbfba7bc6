"""Devices, memory and order: buffers, the scheduler and its five doors, platforms and their backends.

Everything that waits or records lives here; the floors above say *what* reads and writes *which* buffers.
"""
