"""A machine on which Ray cannot start is found before a store is made, and the error says what to change."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.demo import demo
from rayfbnn.errors import ConfigError
from rayfbnn.run.on_ray.machine import check_machine, private_folder
from tests.support.drivers import descendants, finish, slow_spec, start
from tests.support.marks import some_long
from tests.support.output.forked import small_disk, small_files
from tests.support.small import small_spec, write_train

ray_utils = pytest.importorskip("ray._common.utils")
VARIABLES = ("RAY_TMPDIR", "TMPDIR") if sys.platform == "linux" else ("RAY_TMPDIR",)


def too_long_by(n_bytes: int, folder: Path) -> str:
    """A folder whose sockets have as many bytes more than the system allows."""
    session = f"/ray/session_2026-11-27_00-22-15_882248_{os.getpid()}/sockets/plasma_store"
    limit = 103 if sys.platform == "darwin" else 107
    missing = limit + n_bytes - len(f"{folder}/{session}")
    return f"{folder}/" + "d" * missing


def made(path: str) -> str:
    Path(path).mkdir(parents=True)
    return path


def file_in(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


FOLDERS: dict[str, tuple[Callable[[Path], str], str]] = {
    "of a job": (lambda here: made(f"{here}/{'d' * 90}"), "is too long by"),
    "one byte too long": (lambda here: made(too_long_by(1, here)), "108 bytes, but .* allows 107; .* by 1"),
    "long letters": (lambda here: made(f"{here}/{'ß' * 40}"), "is too long by"),
    "missing": (lambda here: f"{here}/no/such", "No such file"),
    "a file": (lambda here: file_in(here / "file"), "Not a directory"),
    "not writable": (lambda here: "/proc", "cannot keep its sockets and logs in /proc"),
    "empty": (lambda here: "", 'begins with /, got ""'),
    "relative": (lambda here: "tmp", 'begins with /, got "tmp"'),
    "no UTF-8": (lambda here: made(os.fsdecode(os.fsencode(here) + b"/\xff")), "not UTF-8"),
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder with a short path, since that of a test is nearly too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have started Ray in this process, and their folders have nothing to do with these."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("which", FOLDERS)
def test_a_temporary_folder_that_ray_cannot_use_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, which: str, variable: str
) -> None:
    make, reason = FOLDERS[which]
    monkeypatch.setenv(variable, make(here))
    before = sorted(here.rglob("*"))
    with pytest.raises(
        ConfigError, match=rf"(?s)^{variable}: .*{reason}.* RAY_TMPDIR .*--workers 0"
    ) as raised:
        check_machine()
    assert "\n" not in str(raised.value)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_longest_temporary_folder_that_fits_is_accepted_and_left_empty(
    here: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = made(too_long_by(0, here))
    monkeypatch.setenv(variable, folder)
    check_machine()
    assert os.listdir(folder) == []


USER = os.getuid()
IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "a folder for all": lambda path: (path.mkdir(), path.chmod(0o777)),
    "a folder of another user": lambda path: (path.mkdir(0o700), os.chown(path, 65534, 65534)),
    "a file": lambda path: path.touch(0o700),
    "a link": lambda path: (path.with_name("else").mkdir(0o700), path.symlink_to("else")),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
}


def modes(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.lstat().st_mode, path.lstat().st_uid) for path in folder.iterdir()}


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777, 0o1777])
@pytest.mark.parametrize("what", [None, *IN_THE_WAY])
def test_the_folder_of_sessions_is_private_and_nothing_else_is_touched(
    here: Path, monkeypatch: pytest.MonkeyPatch, mode: int, what: str | None
) -> None:
    if what == "a folder of another user" and USER != 0:
        pytest.skip("needs root")
    monkeypatch.setenv("RAY_TMPDIR", str(here))
    here.chmod(mode)
    own = f"ray-{USER}"
    names = [own] if mode & 0o022 else ["ray", own]
    if what is not None:
        IN_THE_WAY[what](here / names.pop(0))
    before = modes(here)
    for _ in range(2):  # made, and used again
        check_machine()
        with private_folder() as folder:
            os.chmod(folder, 0o777)  # as Ray does
        ray_utils.try_to_create_directory(folder)  # as a start that was interrupted does, later
        after = modes(here)
        assert after.pop(Path(folder).name) == (stat.S_IFDIR | 0o700, USER)
        assert after == before
        assert Path(folder).name == names[0] if names else Path(folder).name.startswith("ray-")
        shutil.rmtree(folder) if not names else None


def test_ray_looks_at_its_own_variable_first(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/no/such")
    monkeypatch.setenv("RAY_TMPDIR", str(here))
    check_machine()


def test_a_full_disk_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(here / "disk", "64k") as disk:
        if disk is None:
            pytest.skip("needs the right to mount a disk")
        monkeypatch.setenv("TMPDIR", str(disk))
        with pytest.raises(ConfigError, match="^TMPDIR: .*No space left on device"):
            check_machine()


def test_files_that_may_not_be_large_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    with small_files(2**16), pytest.raises(ConfigError, match="^TMPDIR: .*File too large"):
        check_machine()


CHECK = "from rayfbnn.run.on_ray.machine import check_machine; check_machine(); print('fit')"
UP = "ip link set lo up && "
NETWORKS = {
    "no loopback interface": ("", "free ports on 127.0.0.1 (Network is unreachable"),
    "no ports": (
        f"{UP} echo 60000 60000 > /proc/sys/net/ipv4/ip_local_port_range && ",
        "Address already in use",
    ),
    "eight ports": (
        f"{UP} echo 60000 60007 > /proc/sys/net/ipv4/ip_local_port_range && ",
        "Address already in",
    ),
    "32 ports": (f"{UP} echo 60000 60031 > /proc/sys/net/ipv4/ip_local_port_range && ", "fit"),
}


@pytest.mark.parametrize("which", NETWORKS)
def test_a_network_without_free_ports_is_refused(which: str) -> None:
    before, expected = NETWORKS[which]
    alone = ["unshare", "--net", "sh", "-c"]
    if sys.platform != "linux" or subprocess.run([*alone, f"{UP} true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a network of its own (unshare, ip)")
    command = [*alone, f'{before} exec "$@"', "sh", sys.executable, "-c", CHECK]
    done = subprocess.run(command, capture_output=True, text=True)
    assert expected in (done.stdout + done.stderr).strip().splitlines()[-1]


def test_every_verb_that_would_start_ray_refuses_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path)
    api.sample(spec.with_iterations(1), tmp_path / "short.zarr", workers=0, progress=False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    folders = set(tmp_path.rglob("*"))
    monkeypatch.setenv("RAY_TMPDIR", "/no/such")
    verbs: list[Callable[[], object]] = [
        lambda: api.sample(spec, tmp_path / "new.zarr", progress=False),
        lambda: api.sample(spec, tmp_path / "new.zarr", workers=1, method="map", progress=False),
        lambda: api.sample_or_resume(spec, tmp_path / "new.zarr", workers=2, progress=False),
        lambda: api.sample_or_resume(spec, tmp_path / "short.zarr", workers=2, progress=False),
        lambda: api.resume(tmp_path / "short.zarr", iterations=7, workers=1, progress=False),
        lambda: api.compare(spec, tmp_path / "folder", data=write_train(tmp_path), workers=1, progress=False),
        lambda: demo(tmp_path / "demo", workers=1, progress=False),
    ]
    for verb in verbs:
        with pytest.raises(ConfigError, match="^RAY_TMPDIR: .*/no/such"):
            verb()
    assert set(tmp_path.rglob("*")) == folders
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_that_is_complete_does_not_ask_for_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path)
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    monkeypatch.setenv("RAY_TMPDIR", "/no/such")
    assert api.sample_or_resume(spec, tmp_path / "run.zarr", workers=1, progress=False).draws == 10


@pytest.mark.parametrize("verb", some_long(["sample", "run", "resume"], ["sample", "resume"]))
def test_the_command_says_so_in_one_line_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    config = [] if verb == "resume" else [tmp_path / "run.toml"]
    if verb == "resume":
        api.sample(small_spec(tmp_path).with_iterations(1), tmp_path / "run.zarr", workers=0, progress=False)
    monkeypatch.setenv("TMPDIR", "/no/such")
    options = ("--iterations", 5) if verb == "resume" else ()
    driver = start(verb, *config, tmp_path / "run.zarr", "--workers", 1, *options)
    code, output, errors = finish(driver)
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1 and "TMPDIR: " in errors and "--workers 0" in errors
    assert list(descendants(driver.pid)) == []
    assert (tmp_path / "run.zarr").exists() == (verb == "resume")


LONGEST = """
import os
folder = "{here}/"
session = f"ray/session_2026-11-27_00-22-15_882248_{{os.getpid()}}/sockets/plasma_store"
folder += "d" * (106 - len(folder) - len(session))
os.makedirs(folder)
os.environ["RAY_TMPDIR"] = folder
from rayfbnn import api
print(api.sample("{config}", "{store}", workers=1, progress=False).draws)
"""


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="counts the bytes of Linux")
def test_ray_starts_in_the_longest_folder_that_is_accepted(here: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(small_spec(tmp_path).to_toml())
    code = LONGEST.format(here=here, config=tmp_path / "run.toml", store=tmp_path / "run.zarr")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr
