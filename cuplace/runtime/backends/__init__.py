"""Backends, one package each, found by name: ``cuplace.runtime.backends.<name>`` has ``open_backend``."""
