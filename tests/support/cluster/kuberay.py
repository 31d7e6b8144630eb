"""Cut-down schemas of the manifests that KubeRay 1.5 and Kubernetes take, written from their references.

They have the keys that a manifest for rayfbnn could use, and refuse every other key, so that a misspelt one
is found. Source: docs/reference/api.md of KubeRay, packages ray.io/v1, and the reference of Kubernetes 1.28
for pods, policies and claims. The real definitions are some 30,000 lines, most of which are the whole of a
pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VERSION = "1.5.1"
Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_QUANTITY: Schema = {"type": ["string", "integer"]}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}


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


_RESOURCES = _object(
    limits={"type": "object", "additionalProperties": _QUANTITY},
    requests={"type": "object", "additionalProperties": _QUANTITY},
)
_SECCOMP = _object("type", type=_one_of("RuntimeDefault", "Localhost", "Unconfined"), localhostProfile=_TEXT)
_USER: dict[str, Schema] = {
    "runAsNonRoot": _FLAG,
    "runAsUser": _NUMBER,
    "runAsGroup": _NUMBER,
    "seccompProfile": _SECCOMP,
}
_POD_SECURITY = _object(**_USER, fsGroup=_NUMBER, supplementalGroups=_list(_NUMBER))
_CONTAINER_SECURITY = _object(
    **_USER,
    allowPrivilegeEscalation=_FLAG,
    privileged=_FLAG,
    readOnlyRootFilesystem=_FLAG,
    capabilities=_object(add=_list(_TEXT), drop=_list(_TEXT)),
)
_SOURCE = _object("name", name=_TEXT, optional=_FLAG)
_ENV = _object("name", name=_TEXT, value=_TEXT, valueFrom={"type": "object"})
_CONTAINER = _object(
    "name image",
    name=_TEXT,
    image=_TEXT,
    imagePullPolicy=_one_of("Always", "IfNotPresent", "Never"),
    command=_list(_TEXT),
    args=_list(_TEXT),
    env=_list(_ENV),
    envFrom=_list(_object(secretRef=_SOURCE, configMapRef=_SOURCE, prefix=_TEXT)),
    ports=_list(_object("containerPort", containerPort=_NUMBER, name=_TEXT, protocol=_TEXT)),
    resources=_RESOURCES,
    securityContext=_CONTAINER_SECURITY,
    volumeMounts=_list(_object("name mountPath", name=_TEXT, mountPath=_TEXT, readOnly=_FLAG, subPath=_TEXT)),
    workingDir=_TEXT,
)
_VOLUME = _object(
    "name",
    name=_TEXT,
    persistentVolumeClaim=_object("claimName", claimName=_TEXT, readOnly=_FLAG),
    emptyDir={"type": "object"},
    configMap={"type": "object"},
    secret={"type": "object"},
)
_TOLERATION = _object(
    key=_TEXT,
    operator=_one_of("Equal", "Exists"),
    value=_TEXT,
    effect=_one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    tolerationSeconds=_NUMBER,
)
_POD = _object(
    "spec",
    metadata=_object(labels=_TEXTS, annotations=_TEXTS),
    spec=_object(
        "containers",
        containers={**_list(_CONTAINER), "minItems": 1},
        initContainers=_list(_CONTAINER),
        volumes=_list(_VOLUME),
        nodeSelector=_TEXTS,
        tolerations=_list(_TOLERATION),
        affinity={"type": "object"},
        serviceAccountName=_TEXT,
        imagePullSecrets=_list(_object("name", name=_TEXT)),
        restartPolicy=_one_of("Always", "OnFailure", "Never"),
        terminationGracePeriodSeconds=_NUMBER,
        priorityClassName=_TEXT,
        securityContext=_POD_SECURITY,
    ),
)
_CLUSTER_SPEC = _object(
    "headGroupSpec rayVersion",
    rayVersion=_TEXT,
    authOptions=_object(mode=_one_of("disabled", "token"), secretName=_TEXT),
    autoscalerOptions={"type": "object"},
    enableInTreeAutoscaling=_FLAG,
    gcsFaultToleranceOptions={"type": "object"},
    headServiceAnnotations=_TEXTS,
    managedBy=_TEXT,
    suspend=_FLAG,
    headGroupSpec=_object(
        "template",
        enableIngress=_FLAG,
        headService={"type": "object"},
        rayStartParams=_TEXTS,
        serviceType=_TEXT,
        template=_POD,
    ),
    workerGroupSpecs=_list(
        _object(
            "groupName template",
            groupName=_TEXT,
            idleTimeoutSeconds=_NUMBER,
            maxReplicas=_NUMBER,
            minReplicas=_NUMBER,
            numOfHosts=_NUMBER,
            rayStartParams=_TEXTS,
            replicas=_NUMBER,
            scaleStrategy={"type": "object"},
            suspend=_FLAG,
            template=_POD,
        )
    ),
)
_JOB_SPEC = _object(
    "entrypoint",
    activeDeadlineSeconds=_NUMBER,
    backoffLimit=_NUMBER,
    clusterSelector=_TEXTS,
    deletionStrategy={"type": "object"},
    entrypoint=_TEXT,
    entrypointNumCpus={"type": "number"},
    entrypointNumGpus={"type": "number"},
    entrypointResources=_TEXT,
    jobId=_TEXT,
    managedBy=_TEXT,
    metadata=_TEXTS,
    rayClusterSpec=_CLUSTER_SPEC,
    runtimeEnvYAML=_TEXT,
    shutdownAfterJobFinishes=_FLAG,
    submissionMode=_one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    submitterConfig=_object(backoffLimit=_NUMBER),
    submitterPodTemplate=_POD,
    suspend=_FLAG,
    ttlSecondsAfterFinished=_NUMBER,
)


_SELECTOR = _object(matchLabels=_TEXTS)
_PEERS = _list(_object(podSelector=_SELECTOR, namespaceSelector=_SELECTOR))
_PORTS = _list(_object(protocol=_one_of("TCP", "UDP"), port={"type": ["integer", "string"]}, endPort=_NUMBER))
_POLICY_SPEC = _object(
    "podSelector policyTypes",
    podSelector=_SELECTOR,
    policyTypes=_list(_one_of("Ingress", "Egress")),
    ingress=_list(_object(**{"from": _PEERS}, ports=_PORTS)),
    egress=_list(_object(to=_PEERS, ports=_PORTS)),
)
_CLAIM_SPEC = _object(
    "accessModes resources",
    accessModes=_list(_one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")),
    storageClassName=_TEXT,
    volumeName=_TEXT,
    volumeMode=_one_of("Filesystem", "Block"),
    resources=_object("requests", requests=_object("storage", storage=_QUANTITY)),
)
_KINDS = {
    "RayJob": ("ray.io/v1", _JOB_SPEC),
    "RayCluster": ("ray.io/v1", _CLUSTER_SPEC),
    "NetworkPolicy": ("networking.k8s.io/v1", _POLICY_SPEC),
    "PersistentVolumeClaim": ("v1", _CLAIM_SPEC),
}


def schema_of(kind: str) -> Schema:
    """The JSON schema of a manifest of this kind, such as "RayJob"."""
    version, spec = _KINDS[kind]
    return _object(
        "apiVersion kind metadata spec",
        apiVersion=_one_of(version),
        kind=_one_of(kind),
        metadata=_object("name", name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS),
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
