{{/* Name of the webhooks' Service. */}}
{{- define "lockstep.webhookService" -}}
jobset-webhook-service
{{- end }}

{{/* Name of the Secret with the webhooks' certificate. */}}
{{- define "lockstep.webhookSecret" -}}
jobset-webhook-server-cert
{{- end }}

{{/* Makes cert-manager write its CA. */}}
{{- define "lockstep.injectCA" -}}
{{- if .Values.certManager.enable -}}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/jobset-cert
{{- end }}
{{- end }}

{{/* The common fields of all webhooks. Call with (dict "root" $ "path" "/..."). */}}
{{- define "lockstep.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
clientConfig:
  service:
    name: {{ include "lockstep.webhookService" .root }}
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}
{{- end }}

{{/* New pods of JobSets. */}}
{{- define "lockstep.createdPods" -}}
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE]
    resources: [pods]
objectSelector:
  matchExpressions:
    - key: jobset.sigs.k8s.io/jobset-name
      operator: Exists
{{- end }}

{{/* True if a pod has exclusive placement. */}}
{{- define "lockstep.exclusive" -}}
has(object.metadata.annotations) && 'alpha.jobset.sigs.k8s.io/exclusive-topology' in object.metadata.annotations
{{- end }}

{{/* True if a pod of a gang is not in the PodGroup that its annotation names, or in one though none is named. */}}
{{- define "lockstep.toBeGrouped" -}}
has(object.metadata.annotations) && 'lockstep.dev/gang' in object.metadata.annotations && ('lockstep.dev/gang-pod-group' in object.metadata.annotations ? !has(object.spec.schedulingGroup) || !has(object.spec.schedulingGroup.podGroupName) || object.spec.schedulingGroup.podGroupName != object.metadata.annotations['lockstep.dev/gang-pod-group'] : has(object.spec.schedulingGroup))
{{- end }}

{{/* True if a JobSet is new or its spec changes. */}}
{{- define "lockstep.newSpec" -}}
oldObject == null || !has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec
{{- end }}

{{/* True if only annotations of users change, not the JobSet's spec. */}}
{{- define "lockstep.newAnnotations" -}}
!({{ include "lockstep.newSpec" . }}) && has(object.metadata.annotations) && object.metadata.annotations.exists(key, (key.startsWith('lockstep.dev/') || key in ['alpha.jobset.sigs.k8s.io/inplace-timeout', 'alpha.jobset.sigs.k8s.io/exclusive-topology']) && (!has(oldObject.metadata.annotations) || !(key in oldObject.metadata.annotations) || oldObject.metadata.annotations[key] != object.metadata.annotations[key]))
{{- end }}

{{/* True if Lockstep manages a resource of Ray, or did before. */}}
{{- define "lockstep.rayOpen" -}}
!has(object.spec) || !has(object.spec.managedBy) || object.spec.managedBy in ['', 'lockstep.dev/ray-controller'] || (oldObject != null && has(oldObject.spec) && has(oldObject.spec.managedBy) && oldObject.spec.managedBy == 'lockstep.dev/ray-controller')
{{- end }}
