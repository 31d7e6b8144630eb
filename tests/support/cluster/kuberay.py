"""Schemas of the manifests that KubeRay 1.5 and Kubernetes take, with the keys that cluster/ uses.

They refuse every other key, so that a misspelt one is found. A key that a manifest uses for the first time is
added here from its reference: docs/reference/api.md of KubeRay, packages ray.io/v1, and the reference of
Kubernetes 1.28 for pods, policies and claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_QUANTITY: Schema = {"type": ["string", "integer"]}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": _QUANTITY}


def _object(required: str = "", **keys: Schema) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": keys,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _one_of(*words: str) -> Schema:
    return {"enum": list(words)}


_CONTAINER = _object(
    "name image",
    name=_TEXT,
    image=_TEXT,
    envFrom=_list(_object(secretRef=_object("name", name=_TEXT, optional=_FLAG))),
    resources=_object(limits=_QUANTITIES, requests=_QUANTITIES),
    securityContext=_object(
        allowPrivilegeEscalation=_FLAG, capabilities=_object(add=_list(_TEXT), drop=_list(_TEXT))
    ),
    volumeMounts=_list(_object("name mountPath", name=_TEXT, mountPath=_TEXT)),
)
_TOLERATION = _object(
    key=_TEXT,
    operator=_one_of("Equal", "Exists"),
    value=_TEXT,
    effect=_one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
)
_POD_SECURITY = _object(
    runAsNonRoot=_FLAG,
    runAsUser=_NUMBER,
    fsGroup=_NUMBER,
    seccompProfile=_object("type", type=_one_of("RuntimeDefault", "Localhost", "Unconfined")),
)
_POD = _object(
    "spec",
    metadata=_object(labels=_TEXTS),
    spec=_object(
        "containers",
        containers={**_list(_CONTAINER), "minItems": 1},
        volumes=_list(
            _object("name", name=_TEXT, persistentVolumeClaim=_object("claimName", claimName=_TEXT))
        ),
        nodeSelector=_TEXTS,
        tolerations=_list(_TOLERATION),
        restartPolicy=_one_of("Always", "OnFailure", "Never"),
        terminationGracePeriodSeconds=_NUMBER,
        securityContext=_POD_SECURITY,
    ),
)
_WORKERS = _object(
    "groupName template",
    groupName=_TEXT,
    maxReplicas=_NUMBER,
    minReplicas=_NUMBER,
    rayStartParams=_TEXTS,
    replicas=_NUMBER,
    template=_POD,
)
_CLUSTER = _object(
    "headGroupSpec rayVersion",
    rayVersion=_TEXT,
    authOptions=_object(mode=_one_of("disabled", "token")),
    headGroupSpec=_object("template", rayStartParams=_TEXTS, template=_POD),
    workerGroupSpecs=_list(_WORKERS),
)
_JOB = _object(
    "entrypoint",
    backoffLimit=_NUMBER,
    entrypoint=_TEXT,
    rayClusterSpec=_CLUSTER,
    shutdownAfterJobFinishes=_FLAG,
    submissionMode=_one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    submitterConfig=_object(backoffLimit=_NUMBER),
    submitterPodTemplate=_POD,
    ttlSecondsAfterFinished=_NUMBER,
)
_SELECTOR = _object(matchLabels=_TEXTS)
_RULE = _object(
    **{"from": _list(_object(podSelector=_SELECTOR, namespaceSelector=_SELECTOR))},
    ports=_list(_object(protocol=_one_of("TCP", "UDP"), port=_QUANTITY)),
)
_POLICY = _object(
    "podSelector policyTypes",
    podSelector=_SELECTOR,
    policyTypes=_list(_one_of("Ingress", "Egress")),
    ingress=_list(_RULE),
)
_CLAIM = _object(
    "accessModes resources",
    accessModes=_list(_one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")),
    storageClassName=_TEXT,
    resources=_object("requests", requests=_object("storage", storage=_QUANTITY)),
)
_KINDS = {
    "RayJob": ("ray.io/v1", _JOB),
    "RayCluster": ("ray.io/v1", _CLUSTER),
    "NetworkPolicy": ("networking.k8s.io/v1", _POLICY),
    "PersistentVolumeClaim": ("v1", _CLAIM),
}


def schema_of(kind: str) -> Schema:
    """The JSON schema of a manifest of this kind, such as "RayJob"."""
    version, spec = _KINDS[kind]
    return _object(
        "apiVersion kind metadata spec",
        apiVersion=_one_of(version),
        kind=_one_of(kind),
        metadata=_object("name", name=_TEXT),
        spec=spec,
    )


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Every template of a pod in a manifest: what has containers in its spec, with its labels."""
    if isinstance(document, dict):
        if "containers" in (document.get("spec") or {}):
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)
