//! Answers of the embedded server and of the library that differ from those of kube-apiserver.

use super::{Difference, Part, Where};

const fn text(of: Where, lines: &'static [&'static str], why: &'static str) -> Difference {
    Difference { of, part: Part::Text, sure: true, lines, _why: why }
}

/// A controller may be faster or slower than the request.
const fn raced(part: Part, lines: &'static [&'static str], why: &'static str) -> Difference {
    Difference { of: Where::Embedded, part, sure: false, lines, _why: why }
}

const COLLECTED: &str = "the embedded server collects garbage itself, where the real one needs a controller";

/// What a controller writes beside the requests.
const WRITTEN: Part = Part::Members(&["status", "managedFields"]);

pub(crate) const DIFFERENCES: &[Difference] = &[
    text(
        Where::Both,
        &[
            r#"POST /api/v1/namespaces/default/configmaps {"kind":"Secret","apiVersion":"v1","metadata":{"name":"b"}}"#,
            r#"POST /api/v1/namespaces/default/configmaps {"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"b"}}"#,
        ],
        "the real text names internal Go packages or a source file",
    ),
    text(
        Where::Both,
        &[
            "POST /api/v1/namespaces/default/configmaps {bad",
            "PATCH /api/v1/namespaces/default/configmaps/a {",
            r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=s {"op":"add"}"#,
        ],
        "the JSON parser's messages differ",
    ),
    text(
        Where::Both,
        &["GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as application/yaml"],
        "the real server also offers protobuf",
    ),
    text(Where::Both, &["GET /version from kubectl/1"], "each reports its own build"),
    text(
        Where::Embedded,
        &["GET /api/v1/componentstatuses/none"],
        "the real text names the resource in the singular",
    ),
    text(
        Where::Embedded,
        &[
            r#"PUT /apis/coordination.k8s.io/v1/namespaces/default/leases/unknown {"metadata":{"name":"unknown","uid":"3f919656-38aa-43f2-97b2-20c4744f83e2"},"spec":{}}"#,
        ],
        "the real text names the key in etcd",
    ),
    text(
        Where::Both,
        &[
            r#"PATCH /api/v1/namespaces/default/configmaps/fv {"data":{"b":1}}"#,
            r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=s {"spec":{"template":{"spec":{"containers":{"name":"r"}}}}}"#,
        ],
        "for a strategic merge patch the real decoder has other messages",
    ),
    text(
        Where::Both,
        &[
            r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=s&dryRun=All {"metadata":{"ownerReferences":[{"uid":"u2","controller":true}],"$setElementOrder/ownerReferences":[{"uid":"u2"},{"uid":"u1"}]}}"#,
            r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=a&dryRun=All {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"set","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"m"}]}}"#,
        ],
        "errors about owner references name the item and occur once",
    ),
    text(
        Where::Both,
        &[
            r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=b {"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"lm"},"spec":{"strategy":{"rollingUpdate":{"maxSurge":{}}}}}"#,
        ],
        "the real server finds it one step later, with another message",
    ),
    Difference {
        of: Where::Both,
        part: Part::Text,
        sure: false,
        lines: &[
            r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=s {"spec":{"template":{"spec":{"volumes":[{"name":"v","$retainKeys":["name","configMap"],"configMap":{"name":"x"}}],"containers":[{"name":"r","volumeMounts":[{"name":"v","mountPath":"/v"}]}]}}}}"#,
        ],
        _why: "the real server sometimes warns of an unknown directive",
    },
    raced(
        Part::Answer,
        &[
            r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldManager=m {"metadata":{"finalizers":null}}"#,
            "DELETE /api/v1/namespaces/default/configmaps/a",
            "GET /api/v1/namespaces/default/replicationcontrollers/round",
            "GET /api/v1/namespaces/default/replicationcontrollers?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
            "GET /apis/batch/v1/namespaces/default/jobs/round",
            "GET /apis/batch/v1/namespaces/default/jobs?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
            "GET /api/v1/namespaces/round",
            "GET /api/v1/namespaces?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
        ],
        COLLECTED,
    ),
    Difference {
        of: Where::Both,
        part: Part::Members(&["items"]),
        sure: false,
        lines: &["GET /api/v1/namespaces/default/events"],
        _why: "the real server may report an event about the address of its own Service",
    },
    raced(
        WRITTEN,
        &[
            "POST /api/v1/namespaces/default/resourcequotas?fieldManager=m json",
            "GET /api/v1/namespaces/default/resourcequotas/round",
            "GET /api/v1/namespaces/default/resourcequotas?labelSelector=round%3Dyes",
            "PATCH /api/v1/namespaces/default/resourcequotas/round?fieldManager=merge merge-patch+json",
            "PATCH /api/v1/namespaces/default/resourcequotas/round?fieldManager=strategic strategic-merge-patch+json",
            "PUT /api/v1/namespaces/default/resourcequotas/round?fieldManager=put json",
            "PATCH /api/v1/namespaces/default/resourcequotas/round?fieldManager=apply apply-patch+yaml",
            "PATCH /api/v1/namespaces/default/resourcequotas/round/status?fieldManager=status merge-patch+json",
            "GET /api/v1/namespaces/default/resourcequotas/round/status",
            "DELETE /api/v1/namespaces/default/resourcequotas/round?dryRun=All",
            "DELETE /api/v1/namespaces/default/resourcequotas/round",
            "GET /api/v1/namespaces/default/resourcequotas?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
        ],
        "the embedded server sets the status of a quota itself, where the real one needs a controller",
    ),
    raced(
        WRITTEN,
        &[
            "POST /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas?fieldManager=m json",
            "GET /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round",
            "GET /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas?labelSelector=round%3Dyes",
            "PATCH /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round?fieldManager=merge merge-patch+json",
            "PATCH /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round?fieldManager=strategic strategic-merge-patch+json",
            "PUT /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round?fieldManager=put json",
            "PATCH /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round?fieldManager=apply apply-patch+yaml",
            "PATCH /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round/status?fieldManager=status merge-patch+json",
            "GET /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round/status",
            "DELETE /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round?dryRun=All",
            "DELETE /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/round",
            "GET /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
        ],
        "the real server checks flow schemas and writes their status",
    ),
    raced(
        WRITTEN,
        &[
            "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldManager=m json",
            "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example",
            "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions?labelSelector=round%3Dyes",
            "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example?fieldManager=merge merge-patch+json",
            "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example?fieldManager=strategic strategic-merge-patch+json",
            "PUT /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example?fieldManager=put json",
            "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example?fieldManager=apply apply-patch+yaml",
            "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example?dryRun=All",
            "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.rounds.example",
            "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dgadgets.rounds.example",
        ],
        "the controllers of definitions write at other times",
    ),
    Difference {
        of: Where::Embedded,
        part: Part::Members(&["taints"]),
        sure: true,
        lines: &[
            "POST /api/v1/nodes?fieldManager=dry&dryRun=All json",
            "POST /api/v1/nodes?fieldManager=m json",
            "GET /api/v1/nodes/round",
            "GET /api/v1/nodes?labelSelector=round%3Dyes",
            "PATCH /api/v1/nodes/round?fieldManager=merge merge-patch+json",
            "PATCH /api/v1/nodes/round?fieldManager=strategic strategic-merge-patch+json",
            "GET /api/v1/nodes?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3Dround",
        ],
        _why: "a new node is tainted only where kube-controller-manager removes the taint",
    },
    text(
        Where::Embedded,
        &["PUT /api/v1/namespaces/default/persistentvolumeclaims/round?fieldManager=put json"],
        "the real text shows the difference as Go structs",
    ),
];
