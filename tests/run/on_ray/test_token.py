"""The token of Ray's authentication is readable by its user alone, and one that is there is not changed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.run.on_ray.machine import check_token, make_token
from tests.support.drivers import start
from tests.support.small import small_spec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_token_can_be_read_by_its_user_alone(home: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_token()
    finally:
        os.umask(before)
    assert mode(home / ".ray" / "auth_token") == 0o600
    assert mode(home / ".ray") == 0o700
    assert len((home / ".ray" / "auth_token").read_text()) == 64
    assert [path.name for path in (home / ".ray").iterdir()] == ["auth_token"]


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o644])
def test_a_token_that_is_there_is_not_changed(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, permissions: int
) -> None:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("mine")
    path.chmod(permissions)
    monkeypatch.setattr(type(path), "parents", [home])  # those above it may keep others out
    home.chmod(0o755)
    make_token()
    assert (path.read_text(), mode(path)) == ("mine", permissions)
    assert len(caplog.messages) == (permissions != 0o600)
    if caplog.messages:
        assert caplog.messages[0].endswith(f"chmod 600 {path}")


def test_a_folder_that_keeps_others_out_is_enough(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir(mode=0o700)
    path.write_text("mine")
    path.chmod(0o644)
    make_token()
    assert caplog.messages == []


@pytest.mark.parametrize(
    "name, value",
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "abc"), ("RAY_AUTH_TOKEN_PATH", __file__)],
)
def test_no_token_is_made_where_none_is_needed(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    check_token()
    make_token()
    assert list(home.iterdir()) == []


def test_processes_that_start_together_have_one_token(home: Path) -> None:
    threads = [threading.Thread(target=make_token) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in (home / ".ray").iterdir()] == ["auth_token"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("HOME", "/proc"),
        ("HOME", "/no/such"),
        ("RAY_AUTH_TOKEN_PATH", "/no/such"),
        ("RAY_AUTH_TOKEN_PATH", "/dev/null"),
    ],
)
def test_a_token_that_cannot_be_read_or_made_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"^{name}: {value} .*--workers 0"):
        check_token()


@pytest.mark.long
@pytest.mark.ray
def test_ray_takes_the_token_and_every_one_it_makes_is_private(home: Path) -> None:
    (home / "run.toml").write_text(small_spec(home).to_toml())
    driver = start("run", home / "run.toml", home / "run.zarr", "--workers", 1)
    _, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors
    token = home / ".ray" / "auth_token"
    assert mode(token) == 0o600
    ray = (sys.executable, "-m", "ray.scripts.scripts", "get-auth-token")
    assert subprocess.run(ray, capture_output=True, text=True, check=True).stdout.strip() == token.read_text()
