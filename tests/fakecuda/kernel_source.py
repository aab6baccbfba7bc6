"""Reads CUDA C++ sources: which kernels are there, what their parameters are, what g++ needs changed."""

from __future__ import annotations

import re
from typing import NamedTuple

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_TEMPLATE = re.compile(r"template\s*<[^;{}]*$")
_NEEDS_FIBERS = re.compile(r"__sync|__shfl|__ballot|__any|__all|__reduce|__match")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\((?:[^()]|\([^()]*\))*\)\s*|alignas\s*\([^)]*\)\s*)?"
    r"(?P<type>[\w:<>, *]+?)\s*(?P<name>\b\w+)\s*\[\s*\]\s*;"
)


class KernelSource(NamedTuple):
    """A ``__global__`` function: its name, and a letter a parameter: ``c`` for one declared const."""

    name: str
    constness: str


def without_comments(source: str) -> str:
    """The source with each comment replaced by a space."""
    return _COMMENTS.sub(" ", source)


def kernels_of(source: str) -> list[KernelSource]:
    """All kernels that are not templates.

    >>> kernels_of("__global__ void add(const CArray<float, 1> x, float* y, const int n) {}")
    [KernelSource(name='add', constness='c.c')]
    """
    text = without_comments(source)
    found = {}
    for match in _KERNEL.finditer(text):
        if not _TEMPLATE.search(text, 0, match.start()):
            found[match[1]] = KernelSource(match[1], constness_of(text, match.end()))
    return list(found.values())


def constness_of(text: str, start: int) -> str:
    """A letter a parameter, for the parameter list that begins at ``start``, after its bracket."""
    depth, parameter, letters = 0, "", ""
    for char in text[start:]:
        depth += (char in "(<[{") - (char in ")>]}")
        if depth < 0 or (char == "," and depth == 0):
            letters += "c" if _is_const(parameter) else "."
            if depth < 0:
                break
            parameter = ""
        else:
            parameter += char
    return letters if letters != "." or parameter.strip() else ""


def _is_const(parameter: str) -> bool:
    return bool(re.match(r"\s*(__grid_constant__\s+)?const\b", parameter)) and "*" not in parameter


def needs_fibers(source: str) -> bool:
    """Whether threads of a block wait for one another."""
    return bool(_NEEDS_FIBERS.search(without_comments(source)))


def for_host(source: str) -> str:
    """The source as g++ takes it: shared memory whose size is known at the launch becomes a pointer."""
    source = re.sub(r"\bstatic\s+__shared__", "__shared__", source)
    text, place = "", 0
    for match in _DYNAMIC_SHARED.finditer(source):
        before = source[: match.start()]
        at_file_scope = before.count("{") == before.count("}")
        kind, name = match["type"], match["name"]
        if at_file_scope:
            new = f"static ::shim::DynamicShared<{kind}> {name};"
        else:
            new = f"{kind}* {name} = reinterpret_cast<{kind}*>(::shim::dynamic_shared_memory);"
        text += source[place : match.start()] + new
        place = match.end()
    return text + source[place:]
