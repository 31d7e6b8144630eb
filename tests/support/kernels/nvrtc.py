"""CUDA sources compiled by NVRTC, which needs neither a device nor its driver."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any


@cache
def library() -> Any | None:
    """NVRTC of the package nvidia-cuda-nvrtc, None where that is not installed."""
    package = importlib.util.find_spec("nvidia")
    for folder in [] if package is None else package.submodule_search_locations or []:
        for found in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            for builtins in found.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # 13.0 does not find them by itself
            return ctypes.CDLL(str(found))
    return None


def compile_for(architecture: str, source: str) -> tuple[bytes, str]:
    """The machine code for "sm_80" or another, empty where the source has errors, and the compiler's log."""
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc is not None
    options = [b"--std=c++17", f"--gpu-architecture={architecture}".encode(), b"--ptxas-options=-v"]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
    code = b"" if failed else _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log


def _text(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert get(program, buffer) == 0
    return buffer.raw
