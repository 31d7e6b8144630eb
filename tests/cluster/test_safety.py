"""The files of cluster/ start nothing that strangers can use, and nothing with more rights than it needs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from rayfbnn.version import __version__
from tests.support.cluster.kuberay import pods
from tests.support.pages import ROOT

CLUSTER = ROOT / "cluster"
TEXTS = {
    str(file.relative_to(CLUSTER)): file.read_text()
    for file in sorted(CLUSTER.rglob("*"))
    if file.is_file() and file.suffix != ".md"
}
DOCUMENTS = {name: yaml.safe_load(text) for name, text in TEXTS.items() if name.endswith(".yaml")}
WITH_PODS = {name: document for name, document in DOCUMENTS.items() if any(pods(document))}
_HEADS = ("ray start --head", "headGroupSpec")
_TAG = re.compile(r"^[\w./:-]+:(\d[\w.-]*)$|^[\w./:-]+@sha256:[0-9a-f]{64}$")


def open_doors(text: str) -> list[str]:
    """Return each way by which strangers get into the cluster of a file; none if it starts no cluster."""
    commands = [
        line for line in text.splitlines() if "ray start" in line and not line.lstrip().startswith("#")
    ]
    found = []
    if _HEADS[0] in text:
        is_exported = "export RAY_AUTH_MODE=token" in text
        found += [
            f"no token: {line}" for line in commands if not (is_exported or "RAY_AUTH_MODE=token" in line)
        ]
        found += [
            f"a dashboard: {line}"
            for line in commands
            if "--head" in line and "--include-dashboard=false" not in line
        ]
        if "get-auth-token --generate" not in text:
            found.append("nobody makes a token")
    if _HEADS[1] in text and not re.search(r"authOptions:\s*\{?\s*mode: token", text):
        found.append("no token: authOptions")
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_starts_a_cluster_that_strangers_can_use(name: str) -> None:
    assert open_doors(TEXTS[name]) == []


STARTERS = [name for name, text in TEXTS.items() if any(head in text for head in _HEADS)]
WITHOUT: dict[str, Callable[[str], str]] = {
    "token": lambda text: text.replace("RAY_AUTH_MODE=token", "").replace("mode: token", "mode: disabled"),
    "any word of it": lambda text: re.sub(r"RAY_AUTH_MODE=token ?|authOptions.*", "", text),
    "one command": lambda text: re.sub(r"(export )?RAY_AUTH_MODE=token (?=ray|RAY)|mode: token", "", text),
}


@pytest.mark.parametrize("change", WITHOUT)
@pytest.mark.parametrize("name", STARTERS)
def test_a_head_without_token_mode_is_found(name: str, change: str) -> None:
    assert {"ray/aws.yaml", "ray/gcp.yaml", "slurm/many.sbatch", "kuberay/rayjob.yaml"} <= set(STARTERS)
    assert open_doors(WITHOUT[change](TEXTS[name]))


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "get-auth-token" in text])
def test_a_token_is_made_for_its_user_alone(name: str) -> None:
    lines = [line for line in TEXTS[name].splitlines() if "get-auth-token" in line]
    assert all("(umask 077; ray get-auth-token --generate" in line for line in lines)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith("ray/")])
def test_ray_up_carries_the_token_to_every_machine(name: str) -> None:
    """Ray copies file_mounts to the head, and the head copies them to the machines that it starts."""
    mounts = DOCUMENTS[name]["file_mounts"]
    user = DOCUMENTS[name]["auth"]["ssh_user"]
    assert mounts[f"/home/{user}/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("chmod 600 ~/.ray/auth_token" in command for command in DOCUMENTS[name]["setup_commands"])


def rights(document: Any) -> Iterator[str]:
    """Yield the rights that the containers of a manifest have and do not need."""
    for pod in pods(document):
        of_pod = pod["spec"].get("securityContext") or {}
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
            context = {**of_pod, **(container.get("securityContext") or {})}
            if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
                yield f"{container['name']} may be root"
            if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
                yield f"{container['name']} may gain privileges"
            if context.get("capabilities", {}).get("drop") != ["ALL"] or context["capabilities"].get("add"):
                yield f"{container['name']} has capabilities"
            if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
                yield f"{container['name']} may make any system call"


def images(document: Any) -> Iterator[str]:
    """The images of a manifest that are not one fixed version."""
    for pod in pods(document):
        for container in pod["spec"]["containers"]:
            match = _TAG.match(container["image"])
            if match is None or match[1] not in (None, __version__):
                yield container["image"]


@pytest.mark.parametrize("name", WITH_PODS)
def test_pods_have_the_least_rights_and_images_of_this_version(name: str) -> None:
    assert list(rights(WITH_PODS[name])) == []
    assert list(images(WITH_PODS[name])) == []


def every_pod(document: Any, change: Callable[[dict[str, Any]], object]) -> Iterator[Any]:
    """The manifest with one of its pods changed, for each of them."""
    for number in range(len(list(pods(document)))):
        # By way of text, so that pods share nothing, as aliases of YAML do.
        changed = yaml.safe_load(yaml.dump(copy.deepcopy(document), Dumper=_NoAliases))
        change(list(pods(changed))[number]["spec"])
        yield changed


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


RIGHTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no context of the pod": lambda spec: spec.pop("securityContext"),
    "no context of the container": lambda spec: spec["containers"][0].pop("securityContext"),
    "root": lambda spec: spec["securityContext"].update(runAsUser=0),
    "root of the container": lambda spec: spec["containers"][0]["securityContext"].update(runAsNonRoot=False),
    "any call": lambda spec: spec["securityContext"].pop("seccompProfile"),
    "a capability": lambda spec: spec["containers"][0]["securityContext"]["capabilities"].update(
        add=["SYS_ADMIN"]
    ),
    "escalation": lambda spec: spec["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
}
IMAGES = ["rayfbnn:latest", "rayfbnn", "registry.example.org:5000/rayfbnn", "rayfbnn:0.0.9", "rayfbnn:main"]


@pytest.mark.parametrize("name", WITH_PODS)
@pytest.mark.parametrize("change", RIGHTS)
def test_rights_that_no_pod_needs_are_found(name: str, change: str) -> None:
    assert all(list(rights(changed)) for changed in every_pod(WITH_PODS[name], RIGHTS[change]))


@pytest.mark.parametrize("name", WITH_PODS)
@pytest.mark.parametrize("image", IMAGES)
def test_an_image_that_may_change_is_found(name: str, image: str) -> None:
    def change(spec: dict[str, Any]) -> None:
        spec["containers"][0]["image"] = image

    assert all(list(images(changed)) == [image] for changed in every_pod(WITH_PODS[name], change))


def test_the_policy_of_the_network_is_about_every_pod() -> None:
    policy = DOCUMENTS["kuberay/network.yaml"]["spec"]
    labels = policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress"]
    for document in WITH_PODS.values():
        for pod in pods(document):
            assert labels.items() <= pod["metadata"]["labels"].items()
    for rule in policy["ingress"]:  # everything from our own pods, and from others one port alone
        assert all(peer.get("podSelector", {}).get("matchLabels") for peer in rule["from"])
        is_own = [peer["podSelector"]["matchLabels"] for peer in rule["from"]] == [labels]
        assert is_own or [port["port"] for port in rule["ports"]] == [8265]


def test_pods_take_the_claim_and_the_secret_that_the_files_name() -> None:
    claim = DOCUMENTS["kuberay/storage.yaml"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    secrets = set(re.findall(r"create secret generic (\S+)", TEXTS["kuberay/storage.yaml"]))
    for document in WITH_PODS.values():
        for pod in pods(document):
            if "volumes" not in pod["spec"]:
                continue  # it submits a job and reads no store
            (volume,) = pod["spec"]["volumes"]
            assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
            (source,) = pod["spec"]["containers"][0]["envFrom"]
            assert {source["secretRef"]["name"]} == secrets


def test_every_stage_of_the_image_begins_from_a_digest() -> None:
    text = TEXTS["docker/Dockerfile"]
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, flags=re.M)
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.M)) == {"${BASE}"}
    assert f"-t rayfbnn:{__version__} " in text and f"-t rayfbnn-gpu:{__version__} " in text
