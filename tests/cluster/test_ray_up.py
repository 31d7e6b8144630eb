"""`ray up` with the commands of cluster/ray, on addresses of the loopback interface over ssh.

Ray's local provider stands for the cloud: machines are there, and nothing is installed on them. All else is
as in the file: the token that is copied, what the setup writes, how Ray is started, and `ray exec`.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfbnn import api
from tests.support.cluster.nodes import NODE, PATIENCE, free_port, processes, session_folder, variables
from tests.support.drivers import slow_spec
from tests.support.pages import ROOT
from tests.support.small import assert_same_draws

_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync")
_SEPARATION = Path("/run/sshd")  # an empty folder that sshd of root wants, and Debian's service would make
_SERVER = """
Port {port}
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
ListenAddress 127.0.0.4
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
SetEnv {variables}
"""
_CLIENT = """
Host *
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


def why_not() -> str:
    """The reason that no ssh server can be started here, "" if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_SYSTEM) is None]
    return f"not installed: {', '.join(missing)} (Debian: openssh-server rsync)" if missing else ""


@contextmanager
def ssh_server(folder: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Start a server in a folder, whose sessions have the variables; yield the folder of a client for it.

    The client is a program `ssh` that uses the system's with a configuration of its own.
    """
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    settings = {
        "port": free_port(),
        "folder": folder,
        "user": getpass.getuser(),
        "variables": " ".join(f"{name}={value}" for name, value in variables.items()),
    }
    (folder / "sshd_config").write_text(_SERVER.format(**settings))
    (folder / "ssh_config").write_text(_CLIENT.format(**settings))
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    program = shutil.which("ssh", path=_SYSTEM)
    client.write_text(f'#!/bin/sh\nexec {program} -F {folder}/ssh_config "$@"\n')
    client.chmod(0o755)
    is_ours = os.geteuid() == 0 and not _SEPARATION.exists()
    if is_ours:
        _SEPARATION.mkdir(mode=0o755)
    with (folder / "sshd.log").open("w") as log:
        sshd = shutil.which("sshd", path=_SYSTEM)
        server = subprocess.Popen([str(sshd), "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        deadline = time.monotonic() + 20
        while (folder / "sshd.log").read_text().count("listening on") < 3:
            assert server.poll() is None and time.monotonic() < deadline, (folder / "sshd.log").read_text()
            time.sleep(0.05)
        yield client.parent
    finally:
        server.terminate()
        server.wait()
        if is_ours:
            with suppress(OSError):  # a service that was started meanwhile uses it
                _SEPARATION.rmdir()


pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs several addresses of the loopback interface"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
_SEVERAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # nodes, each with an address that is given
_MACHINE = f"--object-store-memory={NODE['object_store_memory']}"

_HEAD = "127.0.0.2"  # Ray takes 127.0.0.1 for this machine's outer address where there are several nodes
_OWN_ADDRESS = "$(echo $SSH_CONNECTION | cut -d ' ' -f 3)"  # the one that Ray has called


def on_loopback(file: str, folder: Path, port: int) -> dict[str, Any]:
    """A file for `ray up` with the local provider, without what installs programs or stops every Ray."""
    given = yaml.safe_load((ROOT / "cluster" / "ray" / file).read_text())
    setup = [line for line in given["setup_commands"] if not re.search(r"apt-get|pip install", line)]
    (head,) = [line for line in given["head_start_ray_commands"] if "ray start" in line]
    (worker,) = [line for line in given["worker_start_ray_commands"] if "ray start" in line]
    (token,) = [name for name in given["file_mounts"] if name.endswith("auth_token")]
    home = f"/home/{given['auth']['ssh_user']}"
    return {
        "cluster_name": folder.name,
        "max_workers": 2,
        # The autoscaler counts the head among the workers of this provider: one of the two will be started.
        "provider": {"type": "local", "head_ip": _HEAD, "worker_ips": ["127.0.0.3", "127.0.0.4"]},
        "auth": {"ssh_user": getpass.getuser(), "ssh_private_key": str(folder / "user")},
        "file_mounts": {token.replace(home, str(folder / "there")): given["file_mounts"][token]},
        "setup_commands": setup,
        "head_start_ray_commands": [
            f"{head.replace('6379', str(port))} --node-ip-address={_OWN_ADDRESS} --num-cpus=0 {_MACHINE}"
        ],
        "worker_start_ray_commands": [
            f"{worker.replace('6379', str(port))} --node-ip-address={_OWN_ADDRESS} --num-cpus=1 {_MACHINE}"
            f" --temp-dir={folder}/w"
        ],
    }


class Laptop:
    """Where `ray up` and `ray exec` are called, with a home and a token of its own."""

    def __init__(self, folder: Path, client: Path, file: str, port: int) -> None:
        self.folder, self.config, self.port = folder, folder / "up.yaml", port
        self.config.write_text(yaml.safe_dump(on_loopback(file, folder, port)))
        path = f"{client}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            **variables(folder),
            "HOME": str(folder / "here"),
            "PATH": path,
            **_SEVERAL,
        }
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            self.environment.pop(name, None)

    def __call__(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(params=["aws.yaml", "gcp.yaml"])
def laptop(request: pytest.FixtureRequest) -> Iterator[Laptop]:
    with session_folder() as folder:
        for name in ("here", "there"):
            (folder / name).mkdir()
        (folder / "there" / "env").symlink_to(Path(sys.executable).parents[1])
        there = {**variables(folder), "HOME": str(folder / "there"), **_SEVERAL}
        with ssh_server(folder, there) as client:
            # A machine of a cloud has a file for the shell, before which the setup puts its line.
            (folder / "there" / ".bashrc").write_text(f"export PATH={client}:$PATH\n")
            yield Laptop(folder, client, request.param, free_port())
        # Ray makes a folder for the sockets of its connections, and leaves it there.
        name = hashlib.sha256(folder.name.encode()).hexdigest()[:10]
        for sockets in Path("/tmp").glob(f"ray_ssh_*/{name}"):
            with suppress(OSError):  # a connection is still there
                sockets.rmdir()
                sockets.parent.rmdir()


def test_a_run_on_a_cluster_of_ray_up_has_the_draws_of_one_process(laptop: Laptop, tmp_path: Path) -> None:
    made = laptop("bash", "-c", "(umask 077; ray get-auth-token --generate > /dev/null)")
    assert made.returncode == 0, made.stderr
    up = laptop("ray", "up", "--yes", "--no-config-cache", laptop.config)
    assert up.returncode == 0, up.stdout + up.stderr
    token = laptop.folder / "there" / ".ray" / "auth_token"
    assert token.read_text() == (laptop.folder / "here" / ".ray" / "auth_token").read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)] == [0o600, 0o700]

    spec = slow_spec(tmp_path, iterations=300)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    run = f"rayfbnn run {tmp_path}/run.toml {tmp_path}/run.zarr --address auto --workers 1 --max-failures 0"
    done = laptop("ray", "exec", "--no-config-cache", laptop.config, run)
    assert done.returncode == 0, done.stdout + done.stderr
    api.sample(spec, tmp_path / "alone.zarr", workers=0, progress=False)
    assert api.verify(tmp_path / "run.zarr").ok
    assert_same_draws(tmp_path / "run.zarr", tmp_path / "alone.zarr")

    raylets = [line for _, line in processes(laptop.folder, "/raylet ")]
    assert any(re.search(r"127\.0\.0\.[34]", line) for line in raylets), (
        "the autoscaler of the head has started no worker"
    )
    status = ("ray", "status", "--address", f"{_HEAD}:{laptop.port}")
    answers = {}
    for mode in ("token", "disabled"):
        laptop.environment["RAY_AUTH_MODE"] = mode
        answers[mode] = laptop(*status)
    assert answers["token"].returncode == 0, answers["token"].stderr
    assert answers["disabled"].returncode != 0 and "Active" not in answers["disabled"].stdout
