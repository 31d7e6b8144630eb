"""Compilation of CUDA sources by NVRTC, which needs neither a device nor its driver."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.cached_files import CachedFiles, digest

OPTIONS = ("--std=c++17", "--ptxas-options=-v")


@cache
def library() -> Any | None:
    """NVRTC of the package nvidia-cuda-nvrtc, or None if that is not installed."""
    package = importlib.util.find_spec("nvidia")
    for folder in [] if package is None else package.submodule_search_locations or []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                # NVRTC 13.0 does not find its builtins by itself.
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    return None


def compile_for(architecture: str, source: str) -> tuple[bytes, str]:
    """Return machine code for an architecture such as "sm_80", and the compiler's log.

    For "compute_80" the code is PTX, which takes half the time. It is empty if the source has errors.
    """

    def write(path: Path) -> None:
        code, log = _compile(architecture, source)
        path.write_bytes(log.encode() + b"\0" + code)

    kept = _folder().file(digest(architecture, source), write).read_bytes()
    log, _, code = kept.partition(b"\0")
    return code, log.decode()


@cache
def version() -> str:
    """The version of NVRTC, such as "13.5"."""
    nvrtc, major, minor = library(), ctypes.c_int(), ctypes.c_int()
    assert nvrtc is not None
    assert nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"{major.value}.{minor.value}"


@cache
def _folder() -> CachedFiles:
    """Folder of the machine code that this version of NVRTC has compiled."""
    nvrtc = library()
    assert nvrtc is not None
    return CachedFiles("nvrtc", nvrtc._name, version(), *OPTIONS)


def _compile(architecture: str, source: str) -> tuple[bytes, str]:
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc is not None
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}")]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    kind = "PTX" if architecture.startswith("compute_") else "CUBIN"
    size_of, get = getattr(nvrtc, f"nvrtcGet{kind}Size"), getattr(nvrtc, f"nvrtcGet{kind}")
    code = b"" if failed else _text(size_of, get, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log


def _text(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert get(program, buffer) == 0
    return buffer.raw
