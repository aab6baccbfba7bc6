from __future__ import annotations

from cuplace.array.type import ArrayType
from cuplace.placement.mesh import make_mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.caller import caller
from cuplace.staging.conflict import Claim, argument_claim, incompatible_devices
from tests.placement.pretend import DEVICES

A = NamedSharding(make_mesh((4,), ("x",), devices=DEVICES[:4]), P("x"))
B = NamedSharding(make_mesh((4,), ("x",), devices=DEVICES[4:8]), P("x"))
A_REVERSED = NamedSharding(make_mesh((4,), ("x",), devices=DEVICES[3::-1]), P("x"))
TYPE = ArrayType((8,), "float32", spec=P("x"), mesh=A.mesh.abstract_mesh)


def argument(name, sharding):
    return argument_claim(lambda: name, "f", TYPE, sharding, caller())


def test_the_first_line_is_jaxs():
    error = incompatible_devices(argument("x", A), argument("y", B))
    assert isinstance(error, ValueError)
    assert str(error).splitlines()[0] == (
        "Received incompatible devices for jitted computation. Got argument x of f with shape float32[8@x] and with "
        "device ids [0, 1, 2, 3] on platform CPU and argument y of f with shape float32[8@x] and with device ids "
        "[4, 5, 6, 7] on platform CPU"
    )


def test_the_help_says_where_each_was_committed_and_what_to_write():
    lines = str(incompatible_devices(argument("x", A), argument("y", B))).splitlines()
    assert [line.split(" at ")[0] for line in lines[1:3]] == [
        "x was committed to its devices", "y was committed to its devices",
    ]  # fmt: skip
    assert "test_conflict.py" in lines[1]
    assert lines[-1] == "Move one of them first: y = device_put(y, x.sharding)"


def test_another_order_of_the_same_devices_is_named():
    text = str(incompatible_devices(argument("x", A), argument("y", A_REVERSED)))
    assert "[3, 2, 1, 0]" in text
    assert "The devices are the same, in another order" in text
    assert "in another order" not in str(incompatible_devices(argument("x", A), argument("y", B)))


def test_a_move_inside_names_its_line_and_says_why_it_cannot_be():
    line = caller()
    move = Claim(B, lambda: "device_put inside jit", str, line=line)
    text = str(incompatible_devices(argument("x", A), move))
    assert text.splitlines()[0].endswith(
        f"device_put inside jit with device ids [4, 5, 6, 7] on platform CPU at {line.file}:{line.lineno}:"
        f"{line.column} (test_a_move_inside_names_its_line_and_says_why_it_cannot_be)"
    )
    assert "after the call" in text.splitlines()[-1]


def test_advice_uses_names_only_where_there_are_any():
    captured = Claim(B, lambda: "captured array with shape float32[8] and", lambda: "the captured array")
    text = str(incompatible_devices(argument("x", A), captured))
    assert f"x = device_put(x, {B!r})" in text
    context = Claim(B, lambda: "jit's context mesh", str)
    assert "Use one mesh" in str(incompatible_devices(context, Claim(A, lambda: "explicit output sharding", str)))
