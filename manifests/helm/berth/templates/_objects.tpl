{{- /*
files/ has the objects as kustomize renders manifests/base and its components; `make chart` writes them. These templates
leave out the objects that the values switch off, and write the values into the others. `set` changes an object in place.
*/}}

{{- /* The objects of a file, as YAML. Takes root and file. The manifests name the namespace berth-system. */}}
{{- define "berth.objects" }}
{{- $root := .root }}
{{- range splitList "\n---\n" ($root.Files.Get (printf "files/%s.yaml" .file)) }}
{{- $object := fromYaml (replace "berth-system" $root.Release.Namespace .) }}
{{- $context := dict "root" $root "Values" $root.Values "object" $object "name" $object.metadata.name }}
{{- if include "berth.wanted" $context }}
{{- include "berth.configure" $context }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Not empty if the object is installed with these values. */}}
{{- define "berth.wanted" }}
{{- $kind := .object.kind }}
{{- $settings := include "berth.settings" . | fromYaml }}
{{- $off := or
  (and (hasPrefix "berth-agent" .name) (not .Values.agent.enabled))
  (and (eq $kind "ServiceAccount") (not .Values.serviceAccounts.create))
  (and (or (eq $kind "PriorityClass") (eq .name "berth-priority-classes")) (not .Values.priorityClasses.create))
  (and (eq $kind "PodDisruptionBudget") (or (not .Values.podDisruptionBudget.enabled) (lt (int $settings.replicas) 2)))
}}
{{- if not $off }}yes{{ end }}
{{- end }}

{{- /* The values of the workload of this name, as YAML. */}}
{{- define "berth.settings" }}
{{- with .Values }}
{{- $all := dict "berth-scheduler" .scheduler "berth" .serve "berth-console" .console "berth-agent" .agent }}
{{- get $all $.name | default dict | toYaml }}
{{- end }}
{{- end }}

{{- /* The name of the account that the manifests call .name. */}}
{{- define "berth.account" }}
{{- with .Values.serviceAccounts }}
{{- get (dict "berth" .serve "berth-console" .console "berth-scheduler" .scheduler "berth-agent" .agent) $.name }}
{{- end }}
{{- end }}

{{- /* Writes the values into an object. */}}
{{- define "berth.configure" }}
{{- $context := . }}
{{- $object := .object }}
{{- $labels := dict "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/instance" .root.Release.Name
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) }}
{{- if has $object.kind (list "Deployment" "DaemonSet") }}
  {{- include "berth.workload" $context }}
{{- else if eq $object.kind "ServiceAccount" }}
  {{- $_ := set $object.metadata "name" (include "berth.account" $context) }}
{{- else if has $object.kind (list "RoleBinding" "ClusterRoleBinding") }}
  {{- range $object.subjects }}
    {{- $_ := set . "name" (include "berth.account" (dict "Values" $context.Values "name" .name)) }}
  {{- end }}
{{- else if eq $object.kind "Secret" }}
  {{- $_ := set $object.metadata.annotations "kubernetes.io/service-account.name" .Values.serviceAccounts.scheduler }}
{{- else if eq $object.kind "PodDisruptionBudget" }}
  {{- $_ := set $object.spec "minAvailable" .Values.podDisruptionBudget.minAvailable }}
{{- else if eq .name "berth-policy" }}
  {{- $policy := mergeOverwrite (fromYaml (get $object.data "policy.yaml")) .Values.policy }}
  {{- $_ := set $object.data "policy.yaml" (toYaml $policy) }}
{{- else if and (eq .name "berth-agent-own-slice") (eq $object.kind "ValidatingAdmissionPolicy") }}
  {{- range $object.spec.matchConditions }}
    {{- $_ := set . "expression" (replace ":berth-agent" (printf ":%s" $context.Values.serviceAccounts.agent) .expression) }}
  {{- end }}
{{- else if and (has .name (list "berth-gpu-namespaces" "berth-scheduler-name"))
    (eq $object.kind "ValidatingAdmissionPolicyBinding") }}
  {{- $_ := set $object.spec "validationActions" .Values.admission.actions }}
{{- else if eq $object.kind "PrometheusRule" }}
  {{- range $group := $object.spec.groups }}
    {{- range $group.rules }}
      {{- if $context.Values.docs }}
        {{- $_ := set .annotations "runbook_url" (print $context.Values.docs (trimPrefix "docs" .annotations.page)) }}
        {{- $_ := unset .annotations "page" }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- else if hasPrefix "MutatingAdmissionPolicy" $object.kind }}
  {{- $_ := set $object "apiVersion" .Values.mutating.apiVersion }}
{{- end }}
{{- end }}

{{- /* Writes the values into a Deployment or a DaemonSet. */}}
{{- define "berth.workload" }}
{{- $context := . }}
{{- $settings := include "berth.settings" . | fromYaml }}
{{- $spec := .object.spec.template.spec }}
{{- if hasKey .object.spec "replicas" }}
  {{- $_ := set .object.spec "replicas" ($settings.replicas | default 1) }}
{{- end }}
{{- $_ := set $spec "serviceAccountName" (include "berth.account" (dict "Values" .Values "name" $spec.serviceAccountName)) }}
{{- if hasKey $spec "priorityClassName" }}
  {{- $class := ternary .Values.priorityClasses.agent .Values.priorityClasses.scheduler (eq .name "berth-agent") }}
  {{- $_ := set $spec "priorityClassName" $class }}
{{- end }}
{{- $placing := dict "nodeSelector" $settings.nodeSelector "tolerations" $settings.tolerations
  "imagePullSecrets" .Values.imagePullSecrets "runtimeClassName" $settings.runtimeClassName }}
{{- range $field, $value := $placing }}
  {{- $_ := unset $spec $field }}
  {{- if $value }}{{ $_ := set $spec $field $value }}{{ end }}
{{- end }}
{{- range $spec.containers }}
  {{- include "berth.container" (dict "root" $context.root "Values" $context.Values "container" .) }}
{{- end }}
{{- $tls := ternary .Values.tls.consoleSecret .Values.tls.secret (eq .name "berth-console") }}
{{- range $spec.volumes }}
  {{- if eq .name "tls" }}{{ $_ := set .secret "secretName" $tls }}{{ end }}
  {{- if eq .name "page-token" }}{{ $_ := set .secret "secretName" $context.Values.console.tokenSecret }}{{ end }}
{{- end }}
{{- end }}

{{- /* Writes image, resources and further arguments into a container. */}}
{{- define "berth.container" }}
{{- $container := .container }}
{{- with .Values }}
{{- $all := dict "kube-scheduler" .scheduler "berth" .serve "console" .console "agent" .agent }}
{{- $settings := get $all $container.name }}
{{- $_ := set $container "resources" $settings.resources }}
{{- if and .docs (eq $container.name "console") }}
  {{- $_ := set $container "args" (append $container.args (print "--docs-url=" .docs)) }}
{{- end }}
{{- if $settings.extraArgs }}{{ $_ := set $container "args" (concat $container.args $settings.extraArgs) }}{{ end }}
{{- if .image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" .image.pullPolicy }}{{ end }}
{{- end }}
{{- $image := dict "repository" .Values.image.repository "tag" (.Values.image.tag | default .root.Chart.AppVersion)
  "digest" .Values.image.digest }}
{{- if eq $container.name "kube-scheduler" }}
  {{- $image = .Values.scheduler.image }}
  {{- if not $image.tag }}
    {{- $tested := get (.root.Files.Get "files/kube-scheduler.yaml" | fromYaml) .Values.scheduler.version }}
    {{- $image = merge (dict "repository" $image.repository) $tested }}
  {{- end }}
{{- end }}
{{- $digest := $image.digest | default "" }}
{{- $_ := set $container "image" (printf "%s:%s%s" $image.repository $image.tag (ternary (print "@" $digest) "" (ne $digest ""))) }}
{{- end }}
