"""The compiled kernels of a CPU stay within their arrays and have no undefined behaviour."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
BUILD_TOOLS = ("cmake", "nanobind")
TESTS = ("tests/kernels/cpu", "tests/kernels/test_every_backend.py", "tests/kernels/test_reducing.py")
# Not run here: other backends, statistical tests, the largest matrices, which take minutes, and the test that
# limits memory.
NOT_RUN = ("CUDA", "shim", "device", "joint", "killed", "second_cache", "without_memory")
SELECTED = " and ".join(f"not {name}" for name in NOT_RUN)
# Put the extension at argv[1] in place of the installed one, and run pytest.
RUN = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("rayfbnn.kernels.cpu._cpu", sys.argv[1])
extension = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = extension
spec.loader.exec_module(extension)
from rayfbnn.kernels.cpu import compiled_module as loaded
assert loaded._cpu is extension
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def check_tools(compiler: str) -> None:
    """Skip the test if the extension cannot be built here."""
    missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
    if missing or shutil.which(compiler) is None:
        pytest.skip(f"needs {', '.join([*missing, compiler])}")


def runtimes(compiler: str) -> str:
    """Libraries to load before Python, which is not compiled with a sanitizer itself.

    The C++ library is one of them: without it the sanitizer does not find the function that throws.
    """
    paths = []
    for name in ("libclang_rt.asan-x86_64.so" if "clang" in compiler else "libasan.so", "libstdc++.so.6"):
        command = [compiler, f"-print-file-name={name}"]
        paths.append(subprocess.check_output(command, text=True).strip())
    if not all(Path(path).is_absolute() for path in paths):
        pytest.skip(f"{compiler} is installed without its sanitizers")
    return ":".join(paths)


def sanitized_extension(compiler: str, source: Path, folder: Path) -> Path:
    """Compile the extension with both sanitizers from the sources below `source`."""
    import cmake
    import nanobind

    command = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
    configure = [
        *(command, "-S", str(source), "-B", str(folder)),
        *("-DRAYFBNN_SANITIZE=ON", f"-DCMAKE_CXX_COMPILER={compiler}"),
        *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind.cmake_dir()}"),
    ]
    for step in (configure, [command, "--build", str(folder)]):
        result = subprocess.run(step, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    (extension,) = folder.glob("_cpu.*.so")
    return extension


def run_tests(compiler: str, extension: Path, *options: str) -> tuple[int, str]:
    """Return the exit status and the output of the kernel tests with this extension."""
    # Python leaves memory to the end of its process, so that reports of leaks mean nothing.
    environment = os.environ | {"LD_PRELOAD": runtimes(compiler), "ASAN_OPTIONS": "detect_leaks=0"}
    # With -s, because pytest keeps back a report that ends the process.
    command = [sys.executable, "-c", RUN, str(extension), "-sxq", "-p", "no:cacheprovider", *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_sanitizers_report_nothing(compiler: str, tmp_path: Path) -> None:
    check_tools(compiler)
    extension = sanitized_extension(compiler, ROOT, tmp_path)
    status, output = run_tests(compiler, extension, "-k", SELECTED, *TESTS)
    assert status == 0, output[-20_000:]
    assert "runtime error" not in output and "Sanitizer" not in output
    assert " passed" in output


def test_a_write_behind_the_end_of_an_array_is_reported(tmp_path: Path) -> None:
    check_tools("g++")
    changed = tmp_path / "changed"
    shutil.copytree(ROOT / "rayfbnn" / "kernels", changed / "rayfbnn" / "kernels")
    shutil.copy(ROOT / "CMakeLists.txt", changed)
    file = changed / "rayfbnn/kernels/cpu/source/python/kernel.hpp"
    before = "width() * units_[0] * size);"
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, "width() * units_[0] * size - size);"))
    extension = sanitized_extension("g++", changed, tmp_path / "build")
    test = "tests/kernels/cpu/test_compiled.py::test_a_trajectory_is_that_of_the_array_code"
    status, output = run_tests("g++", extension, test)
    assert status != 0 and "heap-buffer-overflow" in output
