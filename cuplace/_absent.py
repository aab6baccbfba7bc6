"""Names that a user may look for in `cuplace` and does not find: what to say of each.

Three kinds: names that are planned, names of JAX that cuplace leaves out on purpose (with what to write
instead, where there is something), and everything else.
"""

from __future__ import annotations

import sys

PLANNED = {
    "shard_map": "write the computation on whole arrays; cuplace.numpy runs it shard by shard",
    "eval_shape": "",
    "clear_caches": "",
    "random": "make random numbers with NumPy and place them with device_put",
    "debug": "",
    "distributed": "one process drives all its devices",
}

NO_TRANSFORMATIONS = "it places data and runs programs where data is; it does not transform programs"
TRANSFORMATIONS = (
    "grad", "value_and_grad", "vjp", "jvp", "jacfwd", "jacrev", "jacobian", "hessian", "linearize",
    "linear_transpose", "custom_jvp", "custom_vjp", "custom_gradient", "custom_batching", "custom_derivatives",
    "closure_convert", "checkpoint", "checkpoint_policies", "remat", "vmap", "pmap", "xmap", "make_jaxpr",
)  # fmt: skip

LEFT_OUT = {
    **dict.fromkeys(TRANSFORMATIONS, NO_TRANSFORMATIONS),
    "device_put_sharded": "use device_put(x, sharding)",
    "device_put_replicated": "use device_put(x, NamedSharding(mesh, P()))",
    "with_sharding_constraint": "use reshard(x, sharding), or device_put where axes are Auto",
    "tree_map": "use cuplace.tree.map",
    "tree_util": "use cuplace.tree",
    "live_buffers": "it is gone from JAX, too",
    "nn": "write the function with cuplace.numpy",
    "scipy": "write the function with cuplace.numpy",
    "image": "write the function with cuplace.numpy",
    "ops": "write the function with cuplace.numpy",
    "pure_callback": "call host code between jitted functions",
    "named_call": "there is no compiler that names would reach",
    "named_scope": "there is no compiler that names would reach",
    "export": "there is no compiled artefact to export",
    "stages": "there is no compiled artefact to inspect",
    "ffi": "there is no compiler to extend",
    "extend": "there is no compiler to extend",
    "dtypes": "use NumPy's dtypes and ml_dtypes",
    "enable_x64": "use config.update('enable_x64', True)",
    "disable_jit": "call the function without jit",
    "ensure_compile_time_eval": "compute the value before the jitted function",
    "use_mesh": "use set_mesh(mesh)",
}


def absent_name(name: str) -> AttributeError:
    """The error for `cuplace.NAME` where there is no such name.

    Example:
        >>> print(absent_name("device_put_replicated"))
        cuplace has no 'device_put_replicated': use device_put(x, NamedSharding(mesh, P())).
    """
    if name in PLANNED:
        instead = f": {PLANNED[name]}" if PLANNED[name] else ""
        text = f"cuplace.{name} is planned, but not there yet{instead}."
    elif name in LEFT_OUT:
        text = f"cuplace has no {name!r}: {LEFT_OUT[name]}."
    else:
        text = f"module 'cuplace' has no attribute {name!r}"
    return AttributeError(text, name=name, obj=sys.modules["cuplace"])
