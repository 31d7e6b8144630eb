"""cupy.ndarray as a wrapped NumPy array, with CuPy's rules for its use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.special

from tests.support.standin_cupy import capture, log
from tests.support.standin_cupy.memory import Memory, Numbers, Stream, garbage
from tests.support.standin_cupy.rules import check_call, dtype_of, entries

_UNSUPPORTED = "Unsupported type {}"
# Names that functions.py fills in.
OWN: dict[str, Callable[..., Any]] = {}


class ndarray:  # noqa: N801, CuPy's name
    """An array of the stand-in. It records when the host must wait.

    Everything else runs asynchronously on a device.
    """

    __module__ = "cupy"
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ):
        if memptr is not None or strides is not None:
            raise NotImplementedError("stand-in: an array on given memory")
        self._hold(garbage(np.empty(shape, dtype=dtype, order=order)), Memory())  # type: ignore[call-overload]

    def _hold(self, values: Numbers, memory: Memory) -> None:
        self._values, self._memory = values, memory

    # Attributes that the host knows; those that are NumPy's are set below.
    T = property(lambda self: _method("transpose")(self))
    data = property(lambda self: _Pointer(self._values.ctypes.data))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[number] for number in range(len(self)))

    # Reads for which the host must wait.
    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Numbers:
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"Only numpy.ndarray can be obtained from cupy.ndarray, got {type(out)}")
            if out.dtype != self.dtype or out.shape != self.shape or not out.flags.c_contiguous:
                raise ValueError("out is of another dtype, shape or order")
            if not self.flags.c_contiguous:
                raise RuntimeError("Copying non-contiguous array is not supported with out")
        if out is None:
            out = np.empty(self.shape, dtype=self.dtype)
        if blocking:
            log.record("read", "get", self.nbytes)
            out[...] = self._values
        else:
            (get_stream(stream))._copy(self._memory, self._values, out)
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        if not isinstance(arr, np.ndarray) or arr.dtype != self.dtype or arr.shape != self.shape:
            raise ValueError("set: only of a NumPy array of the same dtype and shape")
        log.record("upload", "set", self.nbytes)
        self._values[...] = arr
        self._memory.write()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy"
            " array explicitly."
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or f"cupy.{ufunc.__name__}" not in entries():
            return NotImplemented
        return function_of(f"cupy.{ufunc.__name__}")(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        module = ".".join(["cupy", *function.__module__.split(".")[1:]])
        if f"{module}.{function.__name__}" not in entries():
            return NotImplemented
        if any(kind not in (ndarray, np.ndarray) for kind in types):
            return NotImplemented
        return function_of(f"{module}.{function.__name__}")(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or f"cupy.ndarray.{name}" not in entries():
            raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")
        if entries()[f"cupy.ndarray.{name}"].kind != "function":
            raise NotImplementedError(f"stand-in: cupy.ndarray.{name}")
        return partial(_method(name), self)

    def __getitem__(self, index: Any) -> ndarray:
        values, place = self._values, _host_index(index, is_read=True)
        return made(lambda: values[place], self, *arrays_in(index))  # type: ignore[no-any-return]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray | list | tuple):
            raise TypeError(_UNSUPPORTED.format(type(value)))
        has_values = isinstance(value, ndarray) and value.ndim > 0
        values, place, other = self._values, _host_index(index, is_read=has_values), unwrapped(value)

        def assign() -> None:
            with np.errstate(all="ignore"):
                values[place] = other

        changed(assign, self, value, *arrays_in(index))


class _Pointer:
    """cupy.cuda.MemoryPointer, of which only the address is used."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def get_stream(stream: Any) -> Stream:
    return Stream.current[-1] if stream is None else stream


def arrays_in(value: Any) -> list[ndarray]:
    """The stand-in's arrays in an argument or an index."""
    if isinstance(value, tuple | list):
        return [array for entry in value for array in arrays_in(entry)]
    return [value] if isinstance(value, ndarray) else []


def made(compute: Callable[[], Any], *sources: Any) -> Any:
    """The result of a function of arrays, wrapped; on a captured stream a graph repeats the function."""
    result = allocated(compute, *sources)
    shared = [array._memory for array in arrays_in(list(sources))]
    if isinstance(result, ndarray) and result._memory not in shared:
        log.record("array", "made")  # a view runs nothing on a device
    return result


def allocated(compute: Callable[[], Any], *sources: Any) -> Any:
    """Do what `made` does for a function that runs nothing on a device."""
    arrays = arrays_in(list(sources))
    with np.errstate(all="ignore"):
        result = wrapped(compute(), *arrays)
    if isinstance(result, ndarray | tuple | list):
        capture.note(compute, result, [array._memory for array in arrays])
    return result


def changed(change: Callable[[], Any], out: ndarray, *sources: Any) -> ndarray:
    """The array `out` after a function has written to it, or will when a graph is launched."""
    log.record("array", "changed")
    return written(change, out, *sources)


def written(change: Callable[[], Any], out: ndarray, *sources: Any) -> ndarray:
    """Do what `changed` does for a kernel, which has its own entry in the log."""
    capture.change(change, [array._memory for array in arrays_in([out, *sources])])
    out._memory.write()
    return out


def wrapped(values: Any, *sources: Any) -> Any:
    """Wrap a result as an array; a view of a source shares that source's memory."""
    if isinstance(values, tuple | list):
        return type(values)(wrapped(value, *sources) for value in values)
    if not isinstance(values, np.ndarray | np.generic):
        return values
    values = np.asarray(values)
    array = object.__new__(ndarray)
    for source in sources:
        if isinstance(source, ndarray) and _root(values) is _root(source._values):
            array._hold(values, source._memory)
            return array
    array._hold(values, Memory())
    return array


def _root(values: Numbers) -> Numbers:
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def unwrapped(value: Any) -> Any:
    """Return the NumPy value of an argument; raise TypeError where CuPy does not accept it."""
    if isinstance(value, ndarray):
        return value._values
    if isinstance(value, np.ndarray):
        raise TypeError(_UNSUPPORTED.format(type(value)))
    if isinstance(value, tuple | list):
        return type(value)(unwrapped(entry) for entry in value)
    return value


def _host_index(index: Any, *, is_read: bool) -> Any:
    """Translate CuPy's index into NumPy's; a mask must be counted, and the host waits for that."""
    if isinstance(index, tuple):
        return tuple(_host_index(entry, is_read=is_read) for entry in index)
    if isinstance(index, np.ndarray | list):
        log.record("upload", "index", np.asarray(index).nbytes)
        return index
    if isinstance(index, ndarray):
        if index.dtype == bool and is_read:
            log.record("read", "index by a mask", 8)
        return index._values
    return index


def function_of(name: str) -> Callable[..., Any]:
    """CuPy's function with this name: NumPy's or SciPy's function under CuPy's rules."""
    entry = entries()[name]
    if name in OWN:
        return partial(_checked, name, OWN[name])
    module, _, attribute = name.rpartition(".")
    home: Any = {"cupy": np, "cupy.linalg": np.linalg, "cupyx.scipy.special": scipy.special}[module]
    if not hasattr(home, attribute):
        raise NotImplementedError(f"stand-in: {name}")
    if entry.kind == "ufunc":
        return partial(_ufunc, name, getattr(home, attribute))
    return partial(plain, name, getattr(home, attribute))


def _checked(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    check_call(name, len(arguments), tuple(options))
    return function(*arguments, **options)


def plain(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    check_call(name, len(arguments), tuple(options))
    out = options.get("out")
    values = [unwrapped(x) for x in arguments]
    named = {key: unwrapped(x) for key, x in options.items()}

    def compute() -> Any:
        with np.errstate(all="ignore"):
            return function(*values, **named)

    sources = [*arguments, *options.values()]
    return changed(compute, out, *sources) if isinstance(out, ndarray) else made(compute, *sources)


def _ufunc(name: str, function: np.ufunc, *arguments: Any, **options: Any) -> Any:
    check_call(name, len(arguments), tuple(options))
    values = [operand(operand_) for operand_ in arguments[: function.nin]]
    out = options.pop("out", arguments[function.nin] if len(arguments) > function.nin else None)
    if isinstance(out, tuple):
        (out,) = out
    if out is not None and not isinstance(out, ndarray):
        raise TypeError(f"{name}: out must be an array of CuPy's, got {type(out)}")
    if not any(isinstance(operand_, ndarray) for operand_ in arguments[: function.nin]):
        values = [np.asarray(operand_) for operand_ in values]
    named = dict(options, order="C") if function.nout == 1 and out is None else options
    if out is not None:
        named["out"] = out._values

    def compute() -> Any:
        with np.errstate(all="ignore"):
            return function(*values, **named)

    sources = arguments[: function.nin]
    if out is not None:
        return changed(compute, out, *sources)
    result = made(compute, *sources)
    if "dtype" not in options and function.nout == 1:
        expected = dtype_of(name, tuple(values))
        if expected != result.dtype:
            raise AssertionError(f"{name}: CuPy 13 gives {expected} where NumPy gives {result.dtype}")
    return result


def operand(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value._values
    if isinstance(value, bool | int | float | complex | np.generic):
        return value
    raise TypeError(_UNSUPPORTED.format(type(value)))


def _method(name: str) -> Callable[..., Any]:
    return partial(_call_method, name)


_READS = {"nonzero", "compress", "choose", "put", "sort", "argsort"}
_IN_PLACE = {"fill", "put", "sort", "itemset", "partition", "resize"}


def _call_method(name: str, self: ndarray, /, *arguments: Any, **options: Any) -> Any:
    check_call(f"cupy.ndarray.{name}", len(arguments), tuple(options))
    if name in _READS:
        log.record("read", name, 8)
    out = options.get("out")
    values = [unwrapped(x) for x in arguments]
    named = {key: unwrapped(x) for key, x in options.items()}
    function = getattr(self._values, name)

    def compute() -> Any:
        with np.errstate(all="ignore"):
            return function(*values, **named)

    sources = [self, *arguments, *options.values()]
    if out is not None:
        return changed(compute, out, *sources)
    if name in _IN_PLACE:
        changed(compute, self, *sources)
        return None
    return made(compute, *sources)


def _attribute(name: str) -> None:
    setattr(ndarray, name, property(lambda self: getattr(self._values, name)))


for _name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides", "flags"):
    _attribute(_name)


def _read(name: str, what: str) -> None:
    """A method for which the host waits: it reads one value, or all of them."""

    def read(self: ndarray) -> Any:
        log.record("read", what, self.nbytes if name in ("tolist", "__repr__") else self.itemsize)
        return getattr(self._values, name)()

    setattr(ndarray, name, read)


for _name, _what in {
    "__bool__": "bool()",
    "__int__": "int()",
    "__float__": "float()",
    "__index__": "index",
}.items():
    _read(_name, _what)
for _name in ("item", "tolist", "__repr__"):
    _read(_name, _name.strip("_"))


def _binary(symbol: str, name: str) -> None:
    def operate(self: ndarray, other: Any) -> Any:
        return function_of(f"cupy.{name}")(self, other)

    def operate_reflected(self: ndarray, other: Any) -> Any:
        return function_of(f"cupy.{name}")(other, self)

    def operate_in_place(self: ndarray, other: Any) -> ndarray:
        return function_of(f"cupy.{name}")(self, other, out=self)

    setattr(ndarray, f"__{symbol}__", operate)
    if symbol not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ndarray, f"__r{symbol}__", operate_reflected)
        setattr(ndarray, f"__i{symbol}__", operate_in_place)


for _symbol, _name in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}.items():
    _binary(_symbol, _name)


def _unary(symbol: str, name: str) -> None:
    setattr(ndarray, f"__{symbol}__", lambda self: function_of(f"cupy.{name}")(self))


for _symbol, _name in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
    _unary(_symbol, _name)
