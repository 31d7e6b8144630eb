"""An ssh server on the loopback interface with keys of its own, which lets nobody in but this user."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.cluster.session import free_port

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
