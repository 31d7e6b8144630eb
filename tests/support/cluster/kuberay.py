"""A cut-down schema of the manifests that KubeRay 1.5 takes, written from its reference of the API.

It has the keys that a manifest for rayfbnn could use, and refuses every other key, so that a misspelt one is
found. Source: docs/reference/api.md of KubeRay, packages ray.io/v1, and the reference of Kubernetes 1.28 for
pods. The real definitions are some 30,000 lines, most of which are the whole of a pod.
"""

from __future__ import annotations

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
_ENV = _object("name", name=_TEXT, value=_TEXT, valueFrom={"type": "object"})
_CONTAINER = _object(
    "name image",
    name=_TEXT,
    image=_TEXT,
    imagePullPolicy=_one_of("Always", "IfNotPresent", "Never"),
    command=_list(_TEXT),
    args=_list(_TEXT),
    env=_list(_ENV),
    envFrom=_list({"type": "object"}),
    ports=_list(_object("containerPort", containerPort=_NUMBER, name=_TEXT, protocol=_TEXT)),
    resources=_RESOURCES,
    securityContext={"type": "object"},
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
        securityContext={"type": "object"},
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


def schema_of(kind: str) -> Schema:
    """The JSON schema of a manifest of this kind, "RayJob" or "RayCluster"."""
    return _object(
        "apiVersion kind metadata spec",
        apiVersion=_one_of("ray.io/v1"),
        kind=_one_of(kind),
        metadata=_object("name", name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS),
        spec={"RayJob": _JOB_SPEC, "RayCluster": _CLUSTER_SPEC}[kind],
    )
