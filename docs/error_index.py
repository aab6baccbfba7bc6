"""The page docs/errors.md: every error class with a program that raises it, and its message as that program shows it.

    python -m docs.error_index [FILE]

writes the page anew: the programs, and what stands after the messages, are kept; headings, sentences and messages come
from the code. `tests/docs/test_error_index.py` compares. A class that has no program yet gets a heading without one:
write it there, and run this again.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
import traceback
import warnings
from pathlib import Path

PAGE = Path(__file__).with_name("errors.md")
SECTION = re.compile(r"^# --- ([\w, ]+?) -+$", re.MULTILINE)
ENTRY = re.compile(r"^### (\w+)\n(.*?)(?=^###? |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(py|)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

SETUP = """\
import cuplace
import cuplace.lax
import cuplace.numpy as cnp
import numpy as np
from cuplace import NamedSharding, P
from cuplace.sharding import AbstractMesh, AxisType, Mesh

devices = cuplace.devices()
mesh = cuplace.make_mesh((8,), ("x",))
grid = cuplace.make_mesh((2, 4), ("y", "z"))
left = cuplace.make_mesh((4,), ("x",), devices=devices[:4])
right = cuplace.make_mesh((4,), ("x",), devices=devices[4:])
x = cuplace.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
"""

INTRODUCTION = f"""\
# Errors

Every mistake that cuplace reports has a class in `cuplace.errors`, which derives from the builtin that JAX raises in
the same case: `except ValueError` written for JAX still works. A message says what was got, what was expected, where it
came from and what to write instead; where JAX has a text for the case, its text is the first line.

Each program below fails, or warns, with the message that follows it. It stands behind these lines, in a file
`program.py`, and runs on eight devices of the simulator (`CUPLACE_PLATFORM=sim CUPLACE_NUM_DEVICES=8`). `python -m
docs.error_index` runs them all and writes this page; the tests compare. The programs of a few need a GPU, a second
process or another platform, and say so in a comment: their messages are made by the class itself.

```py
{SETUP}```
"""


def built() -> dict[str, Exception]:
    """The errors of those programs that need what is not here."""
    from cuplace import errors

    return {
        "AbsentDeviceError": errors.AbsentDeviceError("gpu:7", ["gpu:0", "gpu:1"]),
        "ForeignPlatformError": errors.ForeignPlatformError("cpu", "sim"),
        "ForkedProcessError": errors.ForkedProcessError(),
        "DeviceLostError": errors.DeviceLostError(
            0, "NVIDIA H200", "cudaErrorIllegalAddress: an illegal memory access was encountered",
            ["Submission(12, compute 'my_kernel' on gpu:0 compute from program.py:17 (<module>))"],
        ),
        "DeadlockError": errors.DeadlockError(
            "nothing can run, but Submission(3, compute 'sin' on sim:0 compute from program.py:17 (<module>)) is not "
            "complete"
        ),
        "ForeignMemoryError": errors.ForeignMemoryError(3, [0, 1]),
        "MarkerError": errors.MarkerError("devices", "two", "a whole number of at least 1"),
        "NoFaultsError": errors.NoFaultsError("cpu"),
        "UnknownVariableWarning": errors.UnknownVariableWarning(
            "CUPLACE_NUM_DEVICE is set in the environment, and is no option. Was CUPLACE_NUM_DEVICES meant?"
        ),
        "NoGpuError": errors.NoGpuError("there is no CUDA driver"),
        "RaceError": errors.RaceError(
            "compute 'sin', on stream 'sim:0 compute', writes 32 bytes of buffer 7; from program.py:17 (<module>)",
            "move 'device_put', on stream 'sim:0 -> sim:1', reads 32 bytes of buffer 7; from program.py:18 (<module>)",
            "stream 'sim:0 -> sim:1' does not wait for an event recorded on stream 'sim:0 compute' after the first has "
            "written, and the host has not seen such an event complete",
            False,
        ),
    }  # fmt: skip


def page(old: str) -> str:
    """The page, with the programs and the remarks of an older one."""
    import cuplace
    from cuplace import errors

    cuplace.devices()  # devices are used from here on
    made = built()
    sections, index = [], []
    for title, names in sections_of(inspect.getsource(errors)):
        index.append(f"- {title}: {', '.join(f'[{name}](#{name.lower()})' for name in names)}")
        sections.append(f"## {title}\n")
        for name in names:
            program, remark = entries(old).get(name, ("", ""))
            sections.append(entry(getattr(errors, name), name, program, remark, made.get(name)))
    return "\n".join([INTRODUCTION, *index, "", *sections])


def sections_of(source: str) -> list[tuple[str, list[str]]]:
    """The sections of errors.py, with the classes of each."""
    _, *parts = SECTION.split(source)
    return [
        (title.capitalize(), re.findall(r"^class (\w+)", text, re.MULTILINE))
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def entries(text: str) -> dict[str, tuple[str, str]]:
    """Of each class on a page the program, and what is said after its message."""
    found = {}
    for name, body in ENTRY.findall(text):
        blocks = list(BLOCK.finditer(body))
        programs = [block[2] for block in blocks if block[1]]
        found[name] = (programs[0] if programs else "", body[blocks[-1].end() :].strip() if blocks else "")
    return found


def entry(kind: type[Exception], name: str, program: str, remark: str, made: Exception | None) -> str:
    """What the page says of one class."""
    bases = " and ".join(f"`{base.__name__}`" for base in kind.__bases__)
    article = "An" if bases[1] in "AEIO" else "A"
    sentence = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    parts = [f"### {name}\n", f"{article} {bases}. {sentence}\n"]
    if program:
        error = made or raised(program)
        if type(error) is not kind:
            raise AssertionError(f"the program of {name} gives {error!r}:\n{program}")
        parts += [f"```py\n{program}```\n", f"```\n{message(error)}```\n"]
    return "\n".join([*parts, *([f"{remark}\n"] if remark else [])])


def raised(program: str) -> Exception | None:
    """What a program fails with; warnings are errors."""
    from cuplace.testing.setting import restored_options

    code = compile(SETUP + "\n" + program, "program.py", "exec")
    gc.collect()  # what failed before may be in cycles, and messages tell of memory
    with restored_options(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            exec(code, {"__name__": "program"})
        except Exception as error:
            return error
    return None


def message(error: BaseException) -> str:
    """What Python prints of an error, notes included; addresses of objects differ from run to run."""
    return re.sub(r"0x[0-9a-f]+", "0x...", "".join(traceback.format_exception_only(error)))


def main() -> None:
    """Write the page anew, or a copy of it where a path is given."""
    os.environ.update(CUPLACE_PLATFORM="sim", CUPLACE_NUM_DEVICES="8")
    text = page(PAGE.read_text())
    (Path(sys.argv[1]) if sys.argv[1:] else PAGE).write_text(text)


if __name__ == "__main__":
    main()
