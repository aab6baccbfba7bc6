"""Every mistake that cuplace reports, one class each.

Each class derives from the builtin that JAX raises in the same case, so that `except ValueError` written for
JAX still works, while a test or a program can name the one mistake it means. The text of an error says what was
got, what was expected, where it came from and what to write instead; where JAX has a text for the case, its text
is the first line. A class whose mistake can be made in several places writes the text from the facts it is
given; the others get it where they are raised.

    >>> issubclass(IndivisibleError, ValueError)
    True
"""

from __future__ import annotations

# --- placement ---------------------------------------------------------------------------------------------


class ImmutableError(AttributeError):
    """Something was assigned to, or deleted from, a mesh, a spec, a sharding or another value."""


class ForeignDeviceError(TypeError):
    """Something that is not a device stands where a device is expected."""


class DuplicateDeviceError(ValueError):
    """A device appears more than once in one mesh."""


class MixedPlatformsError(ValueError):
    """The devices of one mesh belong to different platforms."""


class TooFewDevicesError(ValueError):
    """A mesh needs more devices than were given."""


class EmptyMeshError(ValueError):
    """A mesh without devices stands where at least one device is needed."""


class MeshRankError(ValueError):
    """The array of devices, or the axis sizes, of a mesh and its axis names differ in number."""


class AxisNameError(ValueError):
    """A mesh axis is named None, or two axes of a mesh have the same name."""


class AxisNameTypeError(TypeError):
    """A mesh axis is named by something that is not a string."""


class AxisSizeError(ValueError):
    """The size of a mesh axis is zero or negative."""


class AxisSizeTypeError(TypeError):
    """The size of a mesh axis is not an integer, or the sizes are not a sequence."""


class AxisTypesError(ValueError):
    """A mesh has another number of axis types than of axis names."""


class AxisTypeTypeError(TypeError):
    """An axis type is not a member of AxisType."""


class AbstractMeshError(ValueError):
    """Devices were asked of an abstract mesh, which has none."""


class SpecEntryError(TypeError):
    """An entry of a PartitionSpec is not an axis name, a tuple of names, None or UNCONSTRAINED."""


class NestedSpecError(ValueError):
    """A tuple of axis names inside a PartitionSpec contains another tuple."""


class SpecOverlapError(ValueError):
    """An axis of a PartitionSpec is both partitioned over and unreduced or reduced."""


class UnreducedError(NotImplementedError):
    """A sharding was asked for with unreduced or reduced axes, which cuplace has not."""


class NotAMeshError(TypeError):
    """A sharding was asked for on something that is not a mesh."""


class NotASpecError(TypeError):
    """A sharding was asked for with a spec that is not a PartitionSpec."""


class NotAShardingError(TypeError):
    """Something that is not a sharding was compared with one."""


class UnknownAxisError(ValueError):
    """A PartitionSpec names an axis that its mesh does not have."""


class DuplicateSpecError(ValueError):
    """A PartitionSpec uses one mesh axis more than once (in JAX a direct subclass of Exception)."""


class UnconstrainedError(ValueError):
    """UNCONSTRAINED is used on a mesh without Auto axes."""


class MemoryKindError(ValueError):
    """A memory kind that the devices of a sharding do not have."""


class ShapeError(ValueError):
    """The shape of an array has a negative size."""


class ShapeTypeError(TypeError):
    """The shape of an array is not a sequence of integers."""


class RankError(ValueError):
    """A PartitionSpec has more entries than the array has dimensions."""


class IndivisibleError(ValueError):
    """A dimension of an array cannot be cut into the equal pieces that its sharding asks for."""


# --- runtime -----------------------------------------------------------------------------------------------


class ProfileBlockError(AttributeError):
    """Something was asked of a profile that has not begun."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"profile() has no {name!r}: nothing is recorded before the block begins.\n"
            f"Write:  with cuplace.profile() as prof: ...  and then  prof.{name}"
        )


class UnknownVariableWarning(UserWarning):
    """A variable of the environment looks like a misspelt option."""


class UnknownOptionError(AttributeError):
    """An option of the configuration does not exist."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"Unrecognized config option: {name}\nThe options are {', '.join(sorted(known))}.")


class OptionTypeError(ValueError):
    """An option was given a value of another type."""

    def __init__(self, name: str, expected: type, optional: bool, value: object) -> None:
        kind = f"None or of type {expected.__name__}" if optional else f"of type {expected.__name__}"
        super().__init__(
            f"new {expected.__name__} config value must be {kind}, got {value} of type {type(value)}\n"
            f"The option is {name}."
        )


class OptionValueError(ValueError):
    """An option was given a value that it cannot have."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} must be {expected}, got {value!r}.")


class ConfigFrozenError(RuntimeError):
    """An option that chooses devices was changed after devices were used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} config should be updated before backends are initialized i.e. before any JAX operation is "
            f"executed. You should initialize this config immediately after `import jax`.\n"
            f"Here {reason}: set {name} right after importing cuplace, or as CUPLACE_"
            f"{name.removeprefix('jax_').upper()} in the environment."
        )


class UnknownPlatformError(RuntimeError):
    """A platform was named that does not exist."""

    def __init__(self, name: str, available: tuple[str, ...]) -> None:
        super().__init__(
            f"Unknown backend {name}. Available backends are {list(available)}\n"
            "CUPLACE_PLATFORM, or config.update('platform', name) before first use, chooses one of cuda, cpu and sim."
        )


class AbsentPlatformError(RuntimeError):
    """A platform was named that exists but has no devices in this process."""

    def __init__(self, name: str, present: tuple[str, ...]) -> None:
        super().__init__(
            f"Unknown backend: '{name}' requested, but no platforms that are instances of {name} are present. "
            f"Platforms present are: {', '.join(present)}\n"
            "A process has the devices of one platform, chosen before their first use by CUPLACE_PLATFORM or "
            "config.update('platform', name); python -m cuplace tells which and why."
        )


class AbsentDeviceError(RuntimeError):
    """A pickled device does not exist in this process."""

    def __init__(self, name: str, present: list[str]) -> None:
        super().__init__(
            f"There is no device {name} here; the devices are {', '.join(present)}.\n"
            f"Pickled placements need devices of the same platform and number: set num_devices before first use."
        )


class DefaultDeviceError(ValueError):
    """``default_device`` got something that is neither a device nor a platform name."""

    def __init__(self, value: object) -> None:
        super().__init__(
            "jax.default_device must be passed either a Device object (e.g. `jax.devices('cpu')[0]`) or a platform "
            f"name string like 'cpu' or 'gpu', got: {value!r}"
        )


class MeshTypeError(ValueError):
    """A mesh was expected."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"Expected mesh of type `jax.sharding.Mesh`. Got {type(value)}\n"
            "Make one with cuplace.make_mesh((n,), ('x',)); None unsets the mesh."
        )


class ContextInsideJitError(ValueError):
    """The context mesh was asked for or set while a function is traced."""


class GuardLevelError(ValueError):
    """A transfer guard was given a level that there is not."""

    def __init__(self, value: object, levels: tuple[str, ...], where: str | None = None) -> None:
        text = f"new enum value must be None or in {list(levels)}, got {value} of type {type(value)}."
        super().__init__(text if where is None else f"{text}\nIt comes from {where}.")


class TransferGuardError(RuntimeError):
    """A call was about to transfer data, or to wait, where a transfer guard forbids it.

    ``what`` describes it, ``guard`` is the option that forbids it, ``instead`` says what to write.
    """

    def __init__(self, name: str, what: str, guard: str, level: str, instead: str) -> None:
        super().__init__(f"INVALID_ARGUMENT: Disallowed {name}: {what}\n{guard} is {level!r}. {instead}")


class PieceBytesError(ValueError):
    """An array is to be read in pieces that are smaller than its elements."""

    def __init__(self, max_bytes: object, least: int) -> None:
        super().__init__(
            f"iter_host got max_bytes={max_bytes}, but three elements of the array take {least} bytes: one for the "
            f"loop, one that comes next and one on its way.\nWrite max_bytes={least} or more."
        )


class PrefetchDepthError(ValueError):
    """Less than one item is to be put ahead."""

    def __init__(self, depth: object) -> None:
        super().__init__(f"prefetch got depth={depth}; it puts at least 1 item ahead.\nWrite depth=2, or leave it out.")


class OutOfMemoryError(MemoryError, RuntimeError):
    """A device has no memory left for an array, even after all that is dead has come back.

    ``largest`` are what is alive there, with bytes; ``notes`` are lines on what else fills the hardware.
    """

    def __init__(
        self, device: str, nbytes: int, what: str, in_use: int, limit: int | None, largest: list[tuple[int, str]],
        notes: list[str] | tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        bound = "" if limit is None else f" of {limit:,} (max_device_bytes)"
        lines = [f"Out of memory on {device}: {what} needs {nbytes:,} bytes; {in_use:,}{bound} are in use."]
        if largest:
            lines.append("The largest live arrays there, in bytes:")
            lines += [f"  {size:>16,}  {text}" for size, text in largest]
        lines += notes
        lines.append("Delete or donate arrays that are no longer needed, or spread them over more devices.")
        super().__init__("\n".join(lines))


class ForkedProcessError(RuntimeError):
    """A forked child process touched its parent's devices."""

    def __init__(self) -> None:
        super().__init__(
            "This process was forked from one that used cuplace devices; streams, threads and memory do not "
            "survive a fork.\nStart workers with multiprocessing.get_context('spawn'), or use devices only in them."
        )


class DeadlockError(RuntimeError):
    """A wait can never end: nothing is ready, and no latch is held."""


class MachineError(ValueError):
    """A machine for the simulator to model does not exist, or its description makes no sense."""


class MachineSizeError(ValueError):
    """A machine has fewer GPUs than a plan for it uses."""

    def __init__(self, name: str, gpus: int, needed: int) -> None:
        super().__init__(
            f"The machine {name} has {gpus} GPUs, and the shardings need {needed}.\n"
            "Name a larger machine, or write a TOML file that describes one (see docs/machines.md)."
        )


class LayoutTextError(ValueError):
    """An array or a layout on the command line is not written as it should be."""

    def __init__(self, what: str, text: str, example: str) -> None:
        super().__init__(f"the {what} {text!r} cannot be read; expected {example}")


class PlanSourceError(ValueError):
    """A plan was asked for, and nothing tells where the array is."""

    def __init__(self, x: object, source: object = None) -> None:
        told = f"source={source!r} does not tell"
        if source is None:
            told = f"what it got has no sharding: a value of type {type(x)}"
        super().__init__(
            f"plan needs to know where the array is, and {told}.\n"
            "Pass an array, or source=, the sharding that it has: plan(x, target, source=NamedSharding(mesh, P('x'))), "
            "or source='host' for values that no device holds yet."
        )


class PlanMeshError(ValueError):
    """A plan was asked for between a mesh with devices and one without."""

    def __init__(self, source: object, target: object) -> None:
        super().__init__(
            f"plan takes two shardings with devices, or two over abstract meshes. Got {source} and {target}.\n"
            "Devices of a machine that is not here are cuplace.topology(machine).devices."
        )


class MaxBytesError(ValueError):
    """``max_bytes`` is less than a move needs, or no number of bytes.

    ``least`` is the smallest bound that would do; None where the bound is no number of bytes.
    """

    def __init__(self, max_bytes: object, least: int | None = None, device: str = "", shards: int = 0) -> None:
        self.least = least
        if least is None:
            super().__init__(f"max_bytes must be None or a number of bytes from 0 on. Got {max_bytes!r}")
            return
        staging = f" and {least - shards:,} of staging memory" if least > shards else ""
        super().__init__(
            f"max_bytes={max_bytes} is too little, max_bytes={least} would do: {device} needs {shards:,} bytes for new "
            f"shards{staging}.\nNothing was moved. Allow more, or spread the array over more devices."
        )


class MaxBytesInsideJitError(ValueError):
    """``max_bytes`` was given for a value that is being traced."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{who} inside jit takes no max_bytes: the moves of a program are planned when it is placed, with all "
            f"their staging memory.\nWrite {who}(x, ..., max_bytes=...) outside, before the call or after it."
        )


class InjectedFaultError(RuntimeError):
    """Work failed on demand, to see what becomes of it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} failed on demand (cuplace.testing.faults(fail_op=...)).")


class FaultError(ValueError):
    """Faults were asked for in a way that makes no sense."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"faults({name}=...) takes {expected}, got {value!r}.")


class MarkerError(ValueError):
    """A test asks for a platform in a way that makes no sense."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"@pytest.mark.cuplace({name}=...) takes {expected}, got {value!r}.")


class NoFaultsError(RuntimeError):
    """Links were to fail on a platform that has none."""

    def __init__(self, platform: str) -> None:
        super().__init__(
            f"no_p2p, corrupt_pair and slow_link are faults of links between GPUs; the platform {platform} has none.\n"
            "Run the test with CUPLACE_PLATFORM=sim, or config.update('platform', 'sim') before devices are used; "
            "fail_op and oom_after work on every platform."
        )


class RaceError(RuntimeError):
    """Two uses of the same memory conflict, and no executed wait orders them."""

    def __init__(self, first: str, second: str, missing: str, changed_hands: bool) -> None:
        lines = [
            "Nothing orders two uses of the same memory.",
            f"  first:   {first}",
            f"  second:  {second}",
            f"  missing: {missing}.",
        ]
        if changed_hands:
            lines.append("  The first buffer had died, and its memory was given to the second one too early.")
        super().__init__("\n".join(lines))


def with_user_line(error: BaseException, name: str, line: object) -> BaseException:
    """Add to the error of asynchronous work the line of the user's program that enqueued it."""
    if line is not None:
        error.add_note(f"raised by {name!r}, enqueued at {line}")
    return error


# --- arrays and their placement -----------------------------------------------------------------------------


class DeletedArrayError(RuntimeError):
    """An array was used after it was deleted or donated."""

    def __init__(self, type_text: str, how: str | None, line: object, first_line: str | None = None) -> None:
        text = first_line or f"Array has been deleted with shape={type_text}."
        if how is not None and line is not None:
            text += f"\nIt was {how} at {line}."
        hint = (
            "Use what the call that consumed it returned, or leave out donate=True (donate_argnums)."
            if how == "donated"
            else "Keep the array, or make its copy before deleting it; arrays that share memory are deleted together."
        )
        super().__init__(f"{text}\n{hint}")


class InvalidTargetError(ValueError):
    """``device_put`` got a target that is no place for an array."""

    def __init__(self, target: object) -> None:
        super().__init__(
            "`jax.device_put` only accepts `None`, `jax.sharding.Sharding`, `jax.Device`, `Format`, "
            f"`jax.memory.Space` or a pytree of these values. Received invalid value: {target}\n"
            f"It has the type {type(target).__name__}. Write for example device_put(x, cuplace.devices()[0]) or "
            "device_put(x, NamedSharding(mesh, P('x'))); cuplace takes no Format, and no Space.Any."
        )


class SpecWithoutMeshError(ValueError):
    """A bare PartitionSpec was given as a target outside of a mesh context."""

    def __init__(self, spec: object, function: str) -> None:
        first = {
            "device_put": "Please set a mesh via `jax.set_mesh` if a PartitionSpec is passed to device_put",
            "reshard": "Using PartitionSpec when you are not under a mesh context is not allowed. Please pass a "
            f"NamedSharding instance or enter into a mesh context via `jax.set_mesh`. Got {spec}",
        }[function]
        super().__init__(f"{first}\nWrite NamedSharding(mesh, {spec}), or `with cuplace.set_mesh(mesh):` around it.")


class TreePrefixError(ValueError):
    """A pytree of targets or flags is no prefix of the pytree of values that it goes with."""

    def __init__(self, name: str, details: str) -> None:
        hint = (
            "\nGive one target, or a tree of targets like that of the values. Several devices are one target as a "
            "sharding: NamedSharding(mesh, P('x')) on a mesh of them."
        )
        super().__init__(
            f"{name} specification must be a tree prefix of the corresponding value; \n"
            f"  Mismatch details (1 found):\n  pytree structure error: {details}"
            f"{hint if name == 'device_put device' else ''}"
        )


class MaskedArrayError(ValueError):
    """A NumPy masked array stands where an array is expected."""

    def __init__(self) -> None:
        super().__init__(
            "numpy masked arrays are not supported as direct inputs to JAX functions. "
            "Use arr.filled() to convert the value to a standard numpy array."
        )


class InvalidValueError(TypeError):
    """Something that has no dtype, and is no number, stands where an array is expected."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"Cannot interpret value of type {type(value)} as an abstract array; it does not have a dtype attribute\n"
            "Give an array, a number, or a pytree of these; numpy.asarray(x) makes an array of most things."
        )


class DonateAliasError(ValueError):
    """``device_put`` was asked both to consume its input and to share memory with it."""

    def __init__(self) -> None:
        super().__init__(
            "may_alias and donate cannot be True at the same time.\n"
            "With donate=True the result takes over the memory; leave out may_alias."
        )


class DonateFlagError(ValueError):
    """``donate`` is none of True, False and 'strict'."""

    def __init__(self, flag: object) -> None:
        super().__init__(f"donate must be True, False or 'strict' (or a pytree prefix of these). Got {flag!r}")


class StrictDonationError(RuntimeError):
    """``donate='strict'``: the memory of the input cannot be reused or freed, since something else holds it."""

    def __init__(self, type_text: str, reasons: list[str]) -> None:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        super().__init__(
            f"The memory of an array {type_text} cannot be donated: something else still holds it.\n{listed}\n"
            "Drop these first, or write donate=True to consume the array all the same."
        )


class ForeignPlatformError(ValueError):
    """An array is to move to devices of another platform."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(
            f"An array on platform {source.upper()} cannot be moved to devices of another platform, {target.upper()}.\n"
            "Go through the host: device_put(numpy.asarray(x), target)."
        )


class ReshardTargetError(TypeError):
    """``reshard`` got a target that is neither a NamedSharding nor a PartitionSpec."""

    def __init__(self, target: object) -> None:
        super().__init__(
            "`out_sharding` argument of reshard only supports instances of `NamedSharding` or `PartitionSpec`. "
            f"Got {target} of type: {type(target)}\nTo move an array to other devices write device_put(x, target)."
        )


class ReshardNothingError(ValueError):
    """``reshard`` got None as its target."""

    def __init__(self) -> None:
        super().__init__(
            "Reshard should only be used with out_shardings which are non-None and have a non-empty mesh. "
            "Got sharding None.\nWrite reshard(x, NamedSharding(mesh, P(...)))."
        )


class ReshardAutoAxisError(ValueError):
    """``reshard`` got a spec that names an axis which is not Explicit."""

    def __init__(self, spec: object, axis: str, axis_type: object) -> None:
        super().__init__(
            "PartitionSpec passed to reshard cannot contain axis names that are of type Auto or Manual. "
            f"Got PartitionSpec: {spec} with axis name: {axis} of type: AxisType.{axis_type!r}.\n"
            "Make the mesh with axis_types=AxisType.Explicit, or move the array with device_put."
        )


class AssemblyTypeError(TypeError):
    """An array was to be made of parts from something that is no sharding, no list of arrays, or no array."""


class AssemblyError(ValueError):
    """The parts that an array was to be made of do not fit its shape, dtype or sharding."""


class ScalarConversionError(TypeError):
    """An array that is no scalar was asked for a Python number."""

    def __init__(self, ndim: int) -> None:
        super().__init__(
            f"Only scalar arrays can be converted to Python scalars; got arr.ndim={ndim}\n"
            "Pick one element first, as in float(x[0]), or write x.item() for an array of size 1."
        )


class IndexConversionError(TypeError):
    """An array that is no integer scalar was used as an index."""

    def __init__(self, type_text: str) -> None:
        super().__init__(
            f"Only integer scalar arrays can be converted to a scalar index.\n"
            f"Got {type_text}. Pick one element, and convert it where it is no integer: int(x[0])."
        )


class TruthValueError(ValueError):
    """The truth value of an array of another size than 1 was asked."""

    def __init__(self, size: int) -> None:
        super().__init__(
            "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
            if size
            else "The truth value of an empty array is ambiguous. Use `array.size > 0` to check that an array is "
            "not empty."
        )


class UnsizedError(TypeError):
    """A 0-d array was asked for its length or iterated over."""


class ItemAssignmentError(TypeError):
    """An element of an array was assigned to; arrays never change."""

    def __init__(self) -> None:
        super().__init__(
            "JAX arrays are immutable and do not support in-place item assignment. "
            f"Instead of x[idx] = y, use x = x.at[idx].set(y) or another .at[] method.\n{NoAtError()}"
        )


class NoAtError(AttributeError):
    """``x.at`` was used, which is not there yet."""

    def __init__(self) -> None:
        super().__init__(
            "There is no .at[] in cuplace yet: choose between values with cuplace.numpy.where, or change a NumPy array "
            "and place it with device_put."
        )


class ArrayConstructorError(TypeError):
    """``Array`` was called like a constructor."""

    def __init__(self) -> None:
        super().__init__(
            "Array() cannot be called; arrays are made by functions.\n"
            "Write cuplace.numpy.asarray(values), or cuplace.device_put(values, sharding)."
        )


class DLPackShardingError(BufferError):
    """An array over several devices was to be exported through DLPack."""

    def __init__(self, devices: int) -> None:
        super().__init__(
            "to_dlpack can only pack a dlpack tensor from an array on a singular device, but an array with a "
            f"Sharding over {devices} devices was provided.\n"
            "Export its shards (x.addressable_shards[i].data), or move it to one device with device_put first."
        )


class DLPackStreamError(BufferError):
    """A DLPack capsule was asked for on a stream that the memory does not have."""

    def __init__(self, stream: object, expected: str) -> None:
        super().__init__(f"__dlpack__(stream={stream!r}): the stream must be {expected}.")


class DLPackDeviceError(BufferError):
    """A DLPack capsule was asked for on a device that the array is not on."""

    def __init__(self, there: object, here: object) -> None:
        super().__init__(
            f"__dlpack__(dl_device={there}): the array is on {here}; (1, 0) is the host, (2, n) is GPU n.\n"
            "Move it first, with device_put; only a copy on the host, (1, 0), is made on demand."
        )


class DLPackCopyError(BufferError):
    """Memory was to be shared through DLPack without a copy, which is not possible."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"copy=False, but a copy is due: {reason}.")


class DLPackProtocolError(TypeError):
    """``from_dlpack`` got something that does not speak DLPack."""

    def __init__(self, value: object) -> None:
        super().__init__(
            "The array passed to from_dlpack must have __dlpack__ and __dlpack_device__ methods.\n"
            f"It is of type {type(value)}. cuplace.numpy.asarray takes numbers and lists, too."
        )


class ForeignMemoryError(ValueError):
    """An array of another library is on a GPU that no device of the platform is on."""

    def __init__(self, gpu: int, present: list[int]) -> None:
        super().__init__(
            f"The array is on GPU {gpu}; the devices of this process are on {present}.\n"
            "Copy it to one of these first, or let cuplace use more GPUs (num_devices, CUDA_VISIBLE_DEVICES)."
        )


class GpuArrayError(TypeError):
    """An array on a GPU was given to a platform that has none."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"A value of type {type(value)} is on a GPU, and the devices of this process are not.\n"
            "Give its values as a NumPy array, x.get() or cupy.asnumpy(x), or choose CUPLACE_PLATFORM=cuda."
        )


class StreamArgumentError(NotImplementedError):
    """``to_device`` was asked to use a stream of the caller."""

    def __init__(self) -> None:
        super().__init__("stream argument of array.to_device(): cuplace orders its own streams; leave it out.")


# --- types and operations ----------------------------------------------------------------------------------


class NotAnArrayError(TypeError):
    """A value that is neither an array nor a number stands where an array is expected."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"Argument {value!r} of type {type(value)} is not a valid JAX type\n"
            "Arrays are made from NumPy arrays and Python numbers, and, by cuplace.numpy.array, from lists of them."
        )


class ArgumentTypeError(TypeError):
    """An argument of a function of cuplace.numpy has a type, or a dtype, that the function does not take."""


class DtypeError(TypeError):
    """A dtype that arrays cannot have."""


class InexactDtypeError(ValueError):
    """An integer dtype was asked for what is computed in floating point only."""


class TypePromotionError(ValueError):
    """Two dtypes have no common dtype to which both promote implicitly."""


class IntegerRangeError(OverflowError):
    """An integer does not fit into the dtype that it is converted to."""


class NarrowingWarning(UserWarning):
    """64-bit NumPy values were narrowed to 32 bits."""


class IncompatibleShapesError(TypeError):
    """The operands' shapes do not fit the operation."""


class BroadcastError(ValueError):
    """Shapes cannot be broadcast against each other."""


class AxisArgumentError(ValueError):
    """An ``axis`` argument is out of range, or repeats an axis."""


class AxisArgumentTypeError(TypeError):
    """An ``axis`` argument is not an integer."""

    def __init__(self, axis: object, ndim: int) -> None:
        text = f"{type(axis).__name__!r} object cannot be interpreted as an integer\nThe axis {axis!r} was given"
        if ndim:
            text += f"; the dimensions of this array are numbered 0 to {ndim - 1}, or -{ndim} to -1"
        if isinstance(axis, str):
            text += (
                ". To reduce over an axis of the mesh, reduce the dimension that is sharded over it, or call "
                f"lax.psum(x, {axis!r}) inside of map_shards"
            )
        super().__init__(f"{text}.")


class ArrayIndexError(IndexError):
    """An index is out of range, or there are more indices than dimensions."""


class IndexTypeError(TypeError):
    """An index of a type that arrays do not take."""


class NonConcreteBooleanIndexError(IndexError):
    """A traced bool array was used as an index; how many elements it picks is not known."""


class ShardingTypeError(TypeError):
    """The Explicit axes of the operands do not determine how the result is sharded."""


class MeshMismatchError(ValueError):
    """Operands of one operation are typed on different meshes."""


class MemorySpaceError(ValueError):
    """Operands of one operation lie in different memory spaces."""


class ModeArgumentError(ValueError):
    """What positions out of range shall give is none of the modes that there are."""


class OrderArgumentError(ValueError):
    """The ``order`` of elements in memory is none that there is."""


class EmptyReductionError(ValueError):
    """A maximum, or its position, was asked of no elements."""


class StackError(ValueError):
    """Arrays cannot be joined: there are none, they are scalars, or, to be stacked, their shapes differ."""


class ComplexOrderError(ValueError):
    """Complex numbers were to be clipped, or counted; they have no order."""


class ScalarLimitError(ValueError):
    """A limit of a range of numbers is an array with dimensions."""


class SubscriptsError(ValueError):
    """The letters of an einsum do not fit its operands, or each other."""


class NoValueError(ValueError):
    """None was to be made an array."""


# --- staging -----------------------------------------------------------------------------------------------


class IncompatibleDevicesError(ValueError):
    """Arrays committed to different devices, or to the same in another order, meet in one computation.

    Tracebacks print it as ``ValueError``, as JAX does.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return ValueError, self.args


IncompatibleDevicesError.__name__ = IncompatibleDevicesError.__qualname__ = "ValueError"
IncompatibleDevicesError.__module__ = "builtins"


class ContextMeshError(ValueError):
    """An operand lives on another mesh than the one that set_mesh chose."""


class ConcretizationTypeError(TypeError):
    """The data of a traced value was asked for; while a function is traced there are only types."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used as a condition of Python."""


class TracerIntegerConversionError(TypeError):
    """A traced value was used as a Python integer: an index, a size, an argument of range."""


class TracerArrayConversionError(TypeError):
    """A traced value was given to NumPy."""


class UnexpectedTracerError(TypeError):
    """A traced value was used after, or outside of, the trace of its function."""


class StaticArgumentError(ValueError):
    """A static argument of a jitted function is not hashable, or a static or donated name does not exist."""


class TracedValueError(TypeError):
    """A jitted function was called with, or returned, something that is not an array or a number."""


class NotCallableError(TypeError):
    """Something that is not a function was to be jitted."""


class ShardingPrefixError(ValueError):
    """in_shardings or out_shardings do not fit the structure of the arguments or results."""


class ShardingLeafError(TypeError):
    """in_shardings or out_shardings hold something that is not a sharding, a PartitionSpec or None."""


class ArgumentShardingError(ValueError):
    """A sharding in in_shardings or out_shardings does not fit an argument or a result."""


class NoContextMeshError(RuntimeError):
    """A bare PartitionSpec was given to jit without a mesh in the context to read it on."""


class DonationError(RuntimeError):
    """A donated array is used a second time in the same call."""


class KernelResultError(ValueError):
    """A function given to map_shards returned something else than it should."""


class KernelInsideJitError(TypeError):
    """map_shards was called while a function is traced."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"map_shards calls {name} with the data of arrays; while a function is traced there are only types.\n"
            "Call map_shards between jitted functions, not inside of one."
        )


class OutShapeError(TypeError):
    """What map_shards was told of results (out_shape) is no array type, or nothing tells it."""


class CarryTypeError(TypeError):
    """The body of a loop returns a carry of another type than it takes."""


class LoopError(ValueError):
    """A loop was given no length, or lengths that differ."""


class LoopTypeError(TypeError):
    """The body of a loop does not return a pair, or a loop was given something that is no array."""


class DeviceLostError(RuntimeError):
    """A GPU stopped working (an illegal access, a failed launch, a hardware error), and everything on it is lost."""

    def __init__(self, ordinal: int, name: str, error: str, unfinished: list[str]) -> None:
        lines = [f"GPU {ordinal} ({name}) is lost: {error}. Arrays on it cannot be read any more."]
        if unfinished:
            lines.append("Work that was not known to be complete, the latest first (one of these failed):")
            lines += [f"  {text}" for text in unfinished[:16]]
        lines.append(
            "Restart the process. With CUPLACE_SYNC=1 each call waits for its work, so that the call that fails is "
            "the one at fault."
        )
        super().__init__("\n".join(lines))


class NoGpuError(RuntimeError):
    """The cuda platform was asked for, and there is no GPU that it can use."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The cuda platform cannot be opened: {reason}.\nWrite CUPLACE_PLATFORM=cpu or =sim to run without a GPU."
        )
